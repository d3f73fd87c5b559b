//! Kubernetes distributions that bring their own containerd, and the paths of containerd's files in
//! each distribution.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::super::systemd::systemctl;
use super::CONFIG;
use super::node::version;
use super::program::is_program;

/// The distribution to which a node's containerd belongs. `Containerd` means that it belongs to no
/// distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Flavor {
    /// containerd from a package, or installed by the administrator.
    #[default]
    Containerd,
    K3s,
    Rke2,
    K0s,
    Microk8s,
}

/// The flavor that the command line names. None if the node's files decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FlavorArgument(pub(crate) Option<Flavor>);

/// Paths and systemd units of a flavor, from the distribution's manual.
struct Layout {
    /// The directory that contains all files of the distribution.
    root: &'static str,
    config: &'static str,
    /// The directory of containerd and ctr, if they are on no PATH.
    programs: Option<&'static str>,
    /// The possible systemd units; a node has one of them.
    units: &'static [&'static str],
}

/// A file from which a flavor generates containerd's configuration at each start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) file: PathBuf,
    pub(crate) form: SourceForm,
}

/// The form of a [`Source`]: a template, a whole configuration, or a file to be merged with others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceForm {
    /// A template of the whole configuration. It can have a line that includes the flavor's own
    /// template.
    Template,
    /// A file with the whole configuration. The distribution always has this file.
    Whole,
    /// A file that only the installer writes. The distribution merges this file with others.
    OwnFile,
}

impl ValueEnum for FlavorArgument {
    fn value_variants<'a>() -> &'a [FlavorArgument] {
        &[
            FlavorArgument(None),
            FlavorArgument(Some(Flavor::Containerd)),
            FlavorArgument(Some(Flavor::K3s)),
            FlavorArgument(Some(Flavor::Rke2)),
            FlavorArgument(Some(Flavor::K0s)),
            FlavorArgument(Some(Flavor::Microk8s)),
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self.0 {
            None => Some(PossibleValue::new("auto")),
            Some(flavor) => Some(PossibleValue::new(flavor.name())),
        }
    }
}

impl Flavor {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Flavor::Containerd => "containerd",
            Flavor::K3s => "k3s",
            Flavor::Rke2 => "rke2",
            Flavor::K0s => "k0s",
            Flavor::Microk8s => "microk8s",
        }
    }

    fn layout(self) -> Layout {
        match self {
            Flavor::Containerd => Layout {
                root: "/",
                config: CONFIG,
                programs: None,
                units: &["containerd"],
            },
            Flavor::K3s => Layout {
                root: "/var/lib/rancher/k3s",
                config: "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
                programs: Some("/var/lib/rancher/k3s/data/current/bin"),
                units: &["k3s", "k3s-agent"],
            },
            Flavor::Rke2 => Layout {
                root: "/var/lib/rancher/rke2",
                config: "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
                programs: Some("/var/lib/rancher/rke2/bin"),
                units: &["rke2-server", "rke2-agent"],
            },
            Flavor::K0s => Layout {
                root: "/etc/k0s",
                config: "/etc/k0s/containerd.toml",
                programs: Some("/var/lib/k0s/bin"),
                units: &["k0scontroller", "k0sworker"],
            },
            Flavor::Microk8s => Layout {
                root: "/var/snap/microk8s",
                config: "/var/snap/microk8s/current/args/containerd.toml",
                programs: Some("/snap/microk8s/current/bin"),
                units: &["snap.microk8s.daemon-containerd"],
            },
        }
    }

    /// The flavor whose directory contains this configuration file.
    pub(crate) fn of_config(config: &Path) -> Flavor {
        Flavor::first(|flavor| flavor.is_generated() && config.starts_with(flavor.layout().root))
    }

    /// The flavor of a node on which no containerd runs. The files that exist on the node tell the
    /// flavor.
    pub(super) fn on_disk() -> Flavor {
        Flavor::first(|flavor| flavor.config().exists())
    }

    fn first(holds: impl Fn(Flavor) -> bool) -> Flavor {
        let mut flavors = Flavor::value_variants().iter().copied();
        flavors.find(|flavor| holds(*flavor)).unwrap_or_default()
    }

    pub(crate) fn config(self) -> &'static Path {
        Path::new(self.layout().config)
    }

    /// The flavor's own containerd program, if it exists.
    pub(super) fn program(self) -> Option<PathBuf> {
        let program = Path::new(self.layout().programs?).join("containerd");
        is_program(&program).then_some(program)
    }

    /// True if the flavor generates containerd's configuration file at each start.
    pub(crate) fn is_generated(self) -> bool {
        self != Flavor::Containerd
    }

    /// The systemd unit of containerd: the first active one.
    pub(crate) fn unit(self) -> &'static str {
        let units = self.layout().units;
        let (first, others) = units.split_first().unwrap_or((&"containerd", &[]));
        let mut active = units
            .iter()
            .filter(|_| !others.is_empty())
            .filter(|unit| systemctl(&["is-active", "--quiet", unit]));
        active.next().unwrap_or(first)
    }

    /// The administrator's file from which the flavor generates containerd's configuration. The
    /// `layout` is the configuration's `version`: k3s and RKE2 have one file for version 2, and
    /// another one for version 3.
    pub(crate) fn source(self, config: &Path, layout: i64) -> Option<Source> {
        let (name, form) = match self {
            Flavor::Containerd => return None,
            Flavor::K3s | Flavor::Rke2 if layout > 2 => {
                ("config-v3.toml.tmpl", SourceForm::Template)
            }
            Flavor::K3s | Flavor::Rke2 => ("config.toml.tmpl", SourceForm::Template),
            Flavor::K0s => ("containerd.d/usher.toml", SourceForm::OwnFile),
            Flavor::Microk8s => ("containerd-template.toml", SourceForm::Whole),
        };
        Some(Source {
            file: config.with_file_name(name),
            form,
        })
    }

    /// The administrator's files from which the flavor generates containerd's configuration: the
    /// [source](Flavor::source) of each layout.
    pub(crate) fn sources(self, config: &Path) -> Vec<Source> {
        let layouts = [2, 3].into_iter();
        let mut sources: Vec<_> = layouts
            .filter_map(|layout| self.source(config, layout))
            .collect();
        sources.dedup();
        sources
    }
}

/// The path of the same program under the name containerd, if that path exists. In some
/// distributions containerd is a link to a program with many names.
pub(super) fn by_its_name(program: PathBuf) -> PathBuf {
    let named = program.with_file_name("containerd");
    match program != named && is_program(&named) && version(&named).is_some() {
        true => named,
        false => program,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flavor_follows_from_the_configuration_file() {
        for (config, flavor) in [
            ("/etc/containerd/config.toml", Flavor::Containerd),
            ("/home/me/config.toml", Flavor::Containerd),
            (
                "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
                Flavor::K3s,
            ),
            (
                "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
                Flavor::Rke2,
            ),
            ("/etc/k0s/containerd.toml", Flavor::K0s),
            // The path of a snap contains a revision number, here 7731.
            (
                "/var/snap/microk8s/7731/args/containerd.toml",
                Flavor::Microk8s,
            ),
        ] {
            assert_eq!(Flavor::of_config(Path::new(config)), flavor, "{config}");
        }
        for flavor in Flavor::value_variants() {
            assert_eq!(Flavor::of_config(flavor.config()), *flavor);
        }
    }

    #[test]
    fn each_flavors_source_is_the_one_in_its_manual() {
        let k3s = "/var/lib/rancher/k3s/agent/etc/containerd";
        for (flavor, layout, source, form) in [
            (
                Flavor::K3s,
                2,
                format!("{k3s}/config.toml.tmpl"),
                SourceForm::Template,
            ),
            (
                Flavor::K3s,
                3,
                format!("{k3s}/config-v3.toml.tmpl"),
                SourceForm::Template,
            ),
            (
                Flavor::Rke2,
                3,
                format!("{}/config-v3.toml.tmpl", k3s.replace("k3s", "rke2")),
                SourceForm::Template,
            ),
            (
                Flavor::K0s,
                2,
                "/etc/k0s/containerd.d/usher.toml".to_owned(),
                SourceForm::OwnFile,
            ),
            (
                Flavor::Microk8s,
                2,
                "/var/snap/microk8s/current/args/containerd-template.toml".to_owned(),
                SourceForm::Whole,
            ),
        ] {
            let file = PathBuf::from(source);
            assert_eq!(
                flavor.source(flavor.config(), layout),
                Some(Source { file, form })
            );
        }
        assert_eq!(Flavor::Containerd.source(Path::new(CONFIG), 2), None);
    }

    #[test]
    fn a_program_of_many_names_is_run_by_the_name_containerd() {
        let directory = tempfile::tempdir().unwrap();
        let many = directory.path().join("many");
        std::fs::copy("/bin/true", &many).unwrap();
        // The program's directory has no link with the name containerd.
        assert_eq!(by_its_name(many.clone()), many);
    }

    #[test]
    fn every_flavor_can_be_named() {
        let named: Vec<_> = FlavorArgument::value_variants()
            .iter()
            .filter_map(|it| it.0)
            .collect();
        assert_eq!(named, Flavor::value_variants());
        let auto = FlavorArgument::from_str("auto", false);
        assert_eq!(auto, Ok(FlavorArgument(None)));
    }
}
