//! The command line: the commands and flags of `usher` on a node, and kubectl's flags for the
//! cluster.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use usher_cli::explain::How;
use usher_cli::inspect::Inspect;
use usher_cli::ps::List;
use usher_cli::timeline::Timeline;

use crate::view::NAMESPACE;

/// Shows the pods that run under usher in a cluster, and what usher would do with a pod
///
/// The commands are those of `usher` on a node, for the pods of all nodes. They are executed in the
/// pods of the DaemonSet usher-view (scripts/kubernetes/kubectl.yaml), one on each node. That needs
/// the rights to list the pods of that namespace and to execute commands in them: those of the Role
/// usher-view.
///
/// A node that does not answer is named on standard error, and the others are shown. Results go to
/// standard output, as JSON with `-o json`.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-usher",
    bin_name = "kubectl usher",
    version,
    propagate_version = false
)]
#[command(styles = usher_cli::STYLES)]
#[command(after_help = usher_cli::EXIT_STATUS)]
pub struct Arguments {
    #[command(flatten)]
    pub options: ClusterOptions,
    #[command(subcommand)]
    pub command: Command,
}

/// Options that select the cluster and the namespaces.
#[derive(Debug, Clone, Args)]
pub struct ClusterOptions {
    /// The kubeconfig file [default: that of KUBECONFIG, or ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig file [default: its current one]
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// The namespace of pods [default: the context's]
    #[arg(short, long, global = true, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
    /// The namespace of the DaemonSet usher-view
    #[arg(long, global = true, value_name = "NAMESPACE", default_value = NAMESPACE)]
    pub view_namespace: String,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the pods that run under usher, in a namespace or in all
    ///
    /// READY counts the sidecars and apps that are ready; one that has exited is not. STATUS is
    /// Init:1/2 while init containers run, Init:Error when one has failed, Sidecar:0/1 while
    /// sidecars start, Running, Defer:1/4 and Terminating while the pod ends, and then Completed,
    /// Stopped, Terminated, Failed or Error.
    ///
    /// A node, or a shim, that does not answer is named on standard error. Then its pods are
    /// missing from the list, and the exit status is 1.
    Ps {
        /// Lists the pods of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        #[command(flatten)]
        list: List,
    },
    Inspect(Inspect),
    Timeline(Timeline),
    /// Explains what the shim would do with a pod of the cluster, or with the pods of a manifest
    ///
    /// Shows the order in which the containers start and stop, what each waits for, how large the
    /// pod is in each phase, and warnings. The plugin decides this itself: from the cluster it only
    /// needs the pod, and the right to get it.
    #[command(
        after_help = "Exit status: 0, or 1 if the shim would refuse one of the pods, or with --strict if \
                      there is a warning."
    )]
    Explain {
        /// A pod of the cluster: its name, or namespace/name
        #[arg(required_unless_present = "files", conflicts_with = "files")]
        pod: Option<String>,
        /// Manifests in YAML or JSON, each with any number of documents: a file, a directory of
        /// .yaml, .yml and .json files, or - for standard input
        #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        how: How,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Arguments, clap::Error> {
        let words = std::iter::once("kubectl-usher").chain(words.split_whitespace());
        Arguments::try_parse_from(words)
    }

    #[test]
    fn kubectls_flags_may_stand_before_or_after_the_command() {
        for words in [
            "ps -A -n shop --context other --kubeconfig f",
            "--kubeconfig f --context other -n shop ps --all-namespaces",
        ] {
            let arguments = parse(words).unwrap();
            let options = arguments.options;
            assert_eq!(options.namespace.as_deref(), Some("shop"), "{words}");
            assert_eq!(options.context.as_deref(), Some("other"), "{words}");
            assert_eq!(options.kubeconfig, Some(PathBuf::from("f")), "{words}");
            assert_eq!(options.view_namespace, NAMESPACE);
            let Command::Ps {
                all_namespaces,
                list,
            } = arguments.command
            else {
                panic!("{words}")
            };
            // `-A` is kubectl's `--all-namespaces`, and `-a` is usher's `--all`.
            assert_eq!((all_namespaces, list.all()), (true, false), "{words}");
        }
    }

    #[test]
    fn explain_takes_a_pod_or_manifests_but_not_both() {
        assert!(parse("explain web").is_ok());
        assert!(parse("explain -f a.yaml -f -").is_ok());
        for words in ["explain", "explain web -f a.yaml"] {
            let error = parse(words).unwrap_err().to_string();
            assert!(error.contains("kubectl usher explain"), "{error}");
        }
    }
}
