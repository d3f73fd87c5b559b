//! The command line: the words and flags of `usher` on a node, and kubectl's for which cluster and where.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use usher::cli::explain::How;
use usher::cli::inspect::Inspect;
use usher::cli::ps::List;
use usher::cli::timeline::Timeline;

use crate::view::NAMESPACE;

/// Shows what the usher shims of a cluster do, and what they would do
///
/// The commands are those of `usher` on a node, for pods on all nodes. Each node is asked through a pod of
/// the DaemonSet usher-view (scripts/kubernetes/kubectl.yaml), in which a command is executed. That takes
/// the rights to list the pods of its namespace and to execute commands in them, which the Role usher-view
/// has, and no other.
///
/// A node that does not answer is named on standard error, and the others are shown. Facts go to standard
/// output, as JSON with `-o json`.
#[derive(Debug, Parser)]
#[command(
    name = "kubectl-usher",
    bin_name = "kubectl usher",
    version,
    propagate_version = false
)]
#[command(styles = usher::cli::STYLES)]
#[command(
    after_help = "Exit status: 0 if all is well, 1 if something is not, 2 if the arguments make no sense."
)]
pub struct Arguments {
    #[command(flatten)]
    pub whereabouts: Whereabouts,
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, and where in it.
#[derive(Debug, Clone, Args)]
pub struct Whereabouts {
    /// The kubeconfig file [default: what KUBECONFIG names, or ~/.kube/config]
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

/// What is asked for.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Lists the pods of a namespace that run under usher, or those of all
    ///
    /// READY counts the sidecars and apps that are ready; one that has ended is not. STATUS is Init:1/2 while init containers run,
    /// Init:Error when one has failed, Sidecar:0/1 while sidecars are being started, Running, Defer:1/4 and
    /// Terminating while the pod ends, and then Completed, Stopped, Terminated, Failed or Error.
    ///
    /// If a node, or a shim on one, does not answer, it is named on standard error and the exit status is 1:
    /// what is there is missing from the list.
    Ps {
        /// Those of all namespaces
        #[arg(short = 'A', long)]
        all_namespaces: bool,
        #[command(flatten)]
        list: List,
    },
    Inspect(Inspect),
    Timeline(Timeline),
    /// Tells what the shim would do with a pod of the cluster, or with the pods of a manifest
    ///
    /// In which order its containers start and stop, what each waits for, how large the pod is in each
    /// phase, and whatever in it does not do what it looks like. The judgement is made here; the cluster is
    /// only asked for the pod that is named, which takes the right to get it.
    #[command(
        after_help = "Exit status: 0, or 1 if the shim would refuse one of the pods, or with --strict if \
                      there is a warning."
    )]
    Explain {
        /// A pod of the cluster: its name, or namespace/name
        #[arg(required_unless_present = "files", conflicts_with = "files")]
        pod: Option<String>,
        /// Manifests in YAML or JSON, each with any number of documents: a file, a directory of .yaml, .yml and
        /// .json files, or - for standard input
        #[arg(short = 'f', long = "filename", value_name = "FILE|DIR|-")]
        files: Vec<PathBuf>,
        #[command(flatten)]
        how: How,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &str) -> Result<Arguments, String> {
        let words = std::iter::once("kubectl-usher").chain(words.split_whitespace());
        Arguments::try_parse_from(words).map_err(|error| error.to_string())
    }

    #[test]
    fn what_kubectl_takes_stands_before_or_after_the_command() {
        for words in [
            "ps -A -n shop --context other --kubeconfig f",
            "--kubeconfig f --context other -n shop ps --all-namespaces",
        ] {
            let asked = parse(words).unwrap();
            let at = asked.whereabouts;
            assert_eq!(at.namespace.as_deref(), Some("shop"), "{words}");
            assert_eq!(at.context.as_deref(), Some("other"), "{words}");
            assert_eq!(at.kubeconfig, Some(PathBuf::from("f")), "{words}");
            assert_eq!(at.view_namespace, NAMESPACE);
            let Command::Ps {
                all_namespaces,
                list,
            } = asked.command
            else {
                panic!("{words}")
            };
            // A large A is kubectl's, a small one usher's.
            assert_eq!((all_namespaces, list.all()), (true, false), "{words}");
        }
    }

    #[test]
    fn a_pod_or_manifests_are_explained_and_not_both() {
        assert!(parse("explain web").is_ok());
        assert!(parse("explain -f a.yaml -f -").is_ok());
        for words in ["explain", "explain web -f a.yaml"] {
            let said = parse(words).unwrap_err();
            assert!(said.contains("kubectl usher explain"), "{said}");
        }
    }
}
