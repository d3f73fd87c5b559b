//! Configuration files of containerd: the main file and its imports.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use super::cri_of_layout;

#[derive(Debug)]
pub(crate) struct ConfigFile {
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    table: Table,
}

/// The main file and the files that it imports, in containerd's order. Files that are not TOML are
/// left out.
pub(crate) fn configuration_files(main: &Path) -> Vec<ConfigFile> {
    let Some(first) = ConfigFile::read(main) else {
        return Vec::new();
    };
    let from = main.parent().unwrap_or(Path::new("/"));
    let imports = first
        .table
        .get("imports")
        .and_then(Value::as_array)
        .cloned();
    let mut files = vec![first];
    for pattern in imports.iter().flatten().filter_map(Value::as_str) {
        let pattern = from.join(pattern);
        let found = glob::glob(&pattern.to_string_lossy()).into_iter().flatten();
        files.extend(found.flatten().filter_map(|path| ConfigFile::read(&path)));
    }
    files
}

impl ConfigFile {
    fn read(path: &Path) -> Option<ConfigFile> {
        let text = fs::read_to_string(path).ok()?;
        let table = text.parse().ok()?;
        Some(ConfigFile {
            path: path.to_owned(),
            text,
            table,
        })
    }

    /// The name of the CRI plugin in a file of this layout. The plugin's table contains the
    /// runtimes.
    pub(crate) fn cri_name(&self) -> &'static str {
        let layout = self.table.get("version").and_then(Value::as_integer);
        cri_of_layout(layout.unwrap_or(1))
    }

    /// True if the file has a table for this plugin.
    pub(crate) fn has_plugin(&self, name: &str) -> bool {
        let plugins = self.table.get("plugins").and_then(Value::as_table);
        plugins.is_some_and(|plugins| plugins.contains_key(name))
    }

    /// True if the file has a table for this runtime.
    pub(crate) fn has_runtime(&self, name: &str) -> bool {
        let plugins = self.table.get("plugins");
        let runtime = plugins.and_then(|plugins| {
            let part = plugins.get(self.cri_name())?;
            part.get("containerd")?.get("runtimes")?.get(name)
        });
        runtime.is_some()
    }
}
