//! The effective configuration: containerd's files merged with its defaults.

use toml::{Table, Value};

use super::{CRI, CRI_2, ProgramError};

/// The output of `containerd config dump`.
#[derive(Debug, Clone)]
pub(crate) struct Effective {
    text: String,
    table: Table,
}

/// The reason why there is no effective configuration.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DumpError {
    #[error("containerd was not found")]
    NoContainerd,
    /// containerd's complaint about the file.
    #[error(transparent)]
    Refused(#[from] ProgramError),
    /// The parser's own message.
    #[error("the output of config dump is not TOML: {0}")]
    NotToml(String),
}

impl Effective {
    /// # Errors
    ///
    /// If the text is not TOML.
    pub(crate) fn parse(text: String) -> Result<Effective, DumpError> {
        match text.parse() {
            Ok(table) => Ok(Effective { text, table }),
            Err(error) => {
                let message = toml::de::Error::message(&error);
                Err(DumpError::NotToml(message.to_owned()))
            }
        }
    }

    /// An effective configuration for tests, which has a table and no text.
    #[cfg(test)]
    pub(crate) fn of(table: Table) -> Effective {
        Effective {
            text: String::new(),
            table,
        }
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The CRI plugin that has the runtimes: its name and its table.
    pub(crate) fn cri(&self) -> Option<(&'static str, &Table)> {
        let plugins = self.table.get("plugins")?.as_table()?;
        [CRI, CRI_2].into_iter().find_map(|name| {
            let part = plugins.get(name)?.as_table()?;
            part.contains_key("containerd").then_some((name, part))
        })
    }

    /// The CRI plugin's runtimes, each with its name.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = (&str, &Table)> {
        let runtimes = self
            .cri()
            .and_then(|(_, part)| part.get("containerd")?.get("runtimes")?.as_table());
        runtimes
            .into_iter()
            .flatten()
            .filter_map(|(name, runtime)| Some((name.as_str(), runtime.as_table()?)))
    }

    /// The socket on which containerd listens for kubelet.
    pub(crate) fn socket(&self) -> Option<&str> {
        let plugin = || {
            self.table
                .get("plugins")?
                .get("io.containerd.server.v1.grpc")
        };
        // Since containerd 2.4 the address is in the section of a plugin.
        let listeners = [plugin(), self.table.get("grpc")];
        let mut addresses = listeners.into_iter().flatten();
        addresses.find_map(|listener| {
            listener
                .get("address")?
                .as_str()
                .filter(|it| !it.is_empty())
        })
    }

    /// The whole configuration, except this runtime and the names of the imported files.
    pub(crate) fn without(&self, runtime: &str) -> Table {
        let mut rest = self.table.clone();
        rest.remove("imports");
        let plugins = rest.get_mut("plugins").and_then(Value::as_table_mut);
        for (_, plugin) in plugins.into_iter().flatten() {
            let runtimes = plugin
                .get_mut("containerd")
                .and_then(|containerd| containerd.get_mut("runtimes"))
                .and_then(Value::as_table_mut);
            if let Some(runtimes) = runtimes {
                runtimes.remove(runtime);
            }
        }
        rest
    }
}
