//! The effective configuration: all that containerd makes of its files, in its own words.

use toml::{Table, Value};

use super::{CRI, CRI_2};

/// What `containerd config dump` prints.
#[derive(Debug, Clone)]
pub(in crate::cli) struct Effective {
    text: String,
    table: Table,
}

impl Effective {
    /// # Errors
    ///
    /// One sentence, if it is no TOML.
    pub(in crate::cli) fn parse(text: String) -> Result<Effective, String> {
        match text.parse() {
            Ok(table) => Ok(Effective { text, table }),
            Err(error) => Err(format!(
                "its configuration cannot be read: {}",
                toml::de::Error::message(&error)
            )),
        }
    }

    /// One that nobody has printed.
    #[cfg(test)]
    pub(in crate::cli) fn of(table: Table) -> Effective {
        Effective {
            text: String::new(),
            table,
        }
    }

    pub(in crate::cli) fn text(&self) -> &str {
        &self.text
    }

    pub(in crate::cli) fn table(&self) -> &Table {
        &self.table
    }

    /// The CRI plugin that has the runtimes: its name, and its part.
    pub(in crate::cli) fn cri(&self) -> Option<(&'static str, &Table)> {
        let plugins = self.table.get("plugins")?.as_table()?;
        [CRI, CRI_2].into_iter().find_map(|name| {
            let part = plugins.get(name)?.as_table()?;
            part.contains_key("containerd").then_some((name, part))
        })
    }

    /// All runtimes that the CRI plugin knows, by their handlers' names.
    pub(in crate::cli) fn runtimes(&self) -> impl Iterator<Item = (&str, &Table)> {
        let runtimes = self
            .cri()
            .and_then(|(_, part)| part.get("containerd")?.get("runtimes")?.as_table());
        runtimes
            .into_iter()
            .flatten()
            .filter_map(|(name, runtime)| Some((name.as_str(), runtime.as_table()?)))
    }

    /// The socket on which containerd listens for kubelet.
    pub(in crate::cli) fn socket(&self) -> Option<&str> {
        let plugin = || {
            self.table
                .get("plugins")?
                .get("io.containerd.server.v1.grpc")
        };
        // From 2.4 on what listens is a plugin.
        let listeners = [plugin(), self.table.get("grpc")];
        let mut addresses = listeners.into_iter().flatten();
        addresses.find_map(|listener| {
            listener
                .get("address")?
                .as_str()
                .filter(|it| !it.is_empty())
        })
    }

    /// All but a runtime, and but the names of the files that were read.
    pub(in crate::cli) fn without(&self, runtime: &str) -> Table {
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
