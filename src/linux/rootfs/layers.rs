//! The lower directories of an overlay.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::chdir;

use super::MountFailure;
use super::idmap::UserNamespace;
use super::unmount_at;
use crate::PathError;

/// Prefix of the option that lists the lower directories, topmost first.
const LOWERDIR: &str = "lowerdir=";

/// Directory in the bundle in which layers are mounted temporarily.
const DIRECTORY: &str = "usher-layers";

/// Shortens the list of lower directories, so that mount(2) accepts it: makes their common
/// directory the working directory, and their paths relative to that directory. The calling thread
/// must have a working directory of its own.
///
/// # Errors
///
/// If the common directory does not exist.
pub(super) fn shorten(options: &mut [String]) -> Result<(), PathError> {
    let Some(option) = lower_option(options) else {
        return Ok(());
    };
    let lower = directories(option);
    let Some(common) = common_directory(&lower) else {
        return Ok(());
    };
    let short: Option<Vec<&str>> = lower
        .iter()
        .map(|path| path.strip_prefix(&common).ok()?.to_str())
        .collect();
    if let Some(short) = short {
        chdir(&common).map_err(PathError::cannot("change to", &common))?;
        *option = format!("{LOWERDIR}{}", short.join(":"));
    }
    Ok(())
}

/// The lower directories of an overlay, each in a mount that maps the owners of the files. These
/// mounts are needed only until the overlay is mounted, because the overlay keeps its own
/// references.
#[derive(Debug)]
pub(super) struct Layers {
    bundle: PathBuf,
}

impl Layers {
    /// Mounts each layer with mapped owners, and writes the paths of these mounts into the options.
    /// Makes the directory of the mounts the working directory. Then the paths are short, and the
    /// options have room for any number of layers.
    ///
    /// # Errors
    ///
    /// The first error. After it nothing is left mounted.
    pub fn map(
        options: &mut [String],
        bundle: &Path,
        users: &UserNamespace,
    ) -> Result<Layers, MountFailure> {
        let option = lower_option(options).ok_or(MountFailure::NoLayers)?;
        let directory = bundle.join(DIRECTORY);
        let layers = Layers {
            bundle: bundle.to_owned(),
        };
        let mut names = Vec::new();
        for (number, lower) in directories(option).into_iter().enumerate() {
            let name = number.to_string();
            let target = directory.join(&name);
            fs::create_dir_all(&target).map_err(PathError::cannot("make", &target))?;
            users.mount_read_only(&lower, &target)?;
            names.push(name);
        }
        chdir(&directory).map_err(PathError::cannot("change to", &directory))?;
        *option = format!("{LOWERDIR}{}", names.join(":"));
        Ok(layers)
    }
}

impl Drop for Layers {
    fn drop(&mut self) {
        unmount(&self.bundle);
    }
}

/// Unmounts the layers in `bundle`, if any.
pub(super) fn unmount(bundle: &Path) {
    let directory = bundle.join(DIRECTORY);
    let Ok(entries) = fs::read_dir(&directory) else {
        return;
    };
    for entry in entries.flatten() {
        unmount_at(&entry.path());
        // This fails unless the directory is empty. That is intended: a layer that is still mounted
        // there has the files of an image, which must stay.
        let _ = fs::remove_dir(entry.path());
    }
    let _ = fs::remove_dir(directory);
}

fn lower_option(options: &mut [String]) -> Option<&mut String> {
    options
        .iter_mut()
        .find(|option| option.starts_with(LOWERDIR))
}

pub(super) fn directories(option: &str) -> Vec<PathBuf> {
    let list = option.strip_prefix(LOWERDIR).unwrap_or_default();
    list.split(':').map(PathBuf::from).collect()
}

/// Deepest directory that contains all paths; `None` if it is the root directory, or if there are
/// no paths.
pub(super) fn common_directory(paths: &[PathBuf]) -> Option<PathBuf> {
    let mut parents = paths.iter().map(|path| path.parent());
    let mut common = parents.next()??.to_owned();
    for parent in parents {
        let parent = parent?;
        while !parent.starts_with(&common) {
            if !common.pop() {
                return None;
            }
        }
    }
    common.file_name().is_some().then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(paths: &[&str]) -> Option<PathBuf> {
        common_directory(&paths.iter().map(PathBuf::from).collect::<Vec<_>>())
    }

    #[test]
    fn the_common_directory_is_above_all_paths() {
        let snapshots = "/var/lib/containerd/snapshots";
        let path = |rest: &str| format!("{snapshots}/{rest}");
        let found = common(&[&path("1/fs"), &path("12/fs"), &path("123/fs")]);
        assert_eq!(found.as_deref(), Some(Path::new(snapshots)));
        // Here one path is inside the other.
        assert_eq!(common(&["/a/b", "/a/b/c"]), Some(PathBuf::from("/a")));
        assert_eq!(common(&["/a/b/c"]), Some(PathBuf::from("/a/b")));
        assert_eq!(common(&["/a/b", "/c/d"]), None);
        assert_eq!(common(&["/a", "/b"]), None);
        assert_eq!(common(&["a/b", "/a/b"]), None);
        assert_eq!(common(&["", ""]), None);
    }
}
