//! containerd's mount options, in the format of fstab.

use nix::mount::MsFlags;

use super::MountFailure;

/// Maximum number of bytes of data that mount(2) accepts: a page, less one byte for the final NUL.
pub(super) const DATA_AT_MOST: usize = 4095;

/// Mount options, sorted by their recipients: mount(2), the file system and the shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub flags: MsFlags,
    /// Data for the file system.
    pub data: Vec<String>,
    /// True if the source is a file that needs a loop device.
    pub is_loop: bool,
    /// True if the loop device bypasses the page cache of the file.
    pub is_direct: bool,
    /// UIDs on the file system (inside) and in the mount (outside): `inside:outside:count,…`.
    pub uidmap: Option<String>,
    /// GIDs, in the same form as `uidmap`.
    pub gidmap: Option<String>,
}

/// Effect of a mount option on the flags of mount(2).
enum Effect {
    Sets(MsFlags),
    Clears(MsFlags),
}

impl Options {
    pub fn parse(words: &[String]) -> Options {
        let mut options = Options {
            flags: MsFlags::empty(),
            data: Vec::new(),
            is_loop: false,
            is_direct: false,
            uidmap: None,
            gidmap: None,
        };
        for word in words {
            options.add(word);
        }
        // Without a loop device, the option `direct-io` is for the file system.
        if options.is_loop {
            options.data.retain(|word| {
                let is_direct = word == "direct-io";
                options.is_direct |= is_direct;
                !is_direct
            });
        }
        options
    }

    fn add(&mut self, word: &str) {
        match effect(word) {
            Some(Effect::Sets(flags)) => self.flags |= flags,
            Some(Effect::Clears(flags)) => self.flags &= !flags,
            None if word == "loop" => self.is_loop = true,
            None => match word.split_once('=') {
                Some(("uidmap", map)) => self.uidmap = Some(map.to_owned()),
                Some(("gidmap", map)) => self.gidmap = Some(map.to_owned()),
                _ => self.data.push(word.to_owned()),
            },
        }
    }

    /// Data for the file system, as text.
    ///
    /// # Errors
    ///
    /// If the data is longer than mount(2) accepts.
    pub fn data(&self) -> Result<Option<String>, MountFailure> {
        let data = self.data.join(",");
        match data.len() {
            0 => Ok(None),
            length if length > DATA_AT_MOST => Err(MountFailure::LongOptions { length }),
            _ => Ok(Some(data)),
        }
    }
}

fn effect(word: &str) -> Option<Effect> {
    use Effect::{Clears, Sets};
    Some(match word {
        "async" => Clears(MsFlags::MS_SYNCHRONOUS),
        "atime" => Clears(MsFlags::MS_NOATIME),
        "bind" => Sets(MsFlags::MS_BIND),
        "defaults" => Sets(MsFlags::empty()),
        "dev" => Clears(MsFlags::MS_NODEV),
        "diratime" => Clears(MsFlags::MS_NODIRATIME),
        "dirsync" => Sets(MsFlags::MS_DIRSYNC),
        "exec" => Clears(MsFlags::MS_NOEXEC),
        "mand" => Sets(MsFlags::MS_MANDLOCK),
        "noatime" => Sets(MsFlags::MS_NOATIME),
        "nodev" => Sets(MsFlags::MS_NODEV),
        "nodiratime" => Sets(MsFlags::MS_NODIRATIME),
        "noexec" => Sets(MsFlags::MS_NOEXEC),
        "nomand" => Clears(MsFlags::MS_MANDLOCK),
        "norelatime" => Clears(MsFlags::MS_RELATIME),
        "nostrictatime" => Clears(MsFlags::MS_STRICTATIME),
        "nosuid" => Sets(MsFlags::MS_NOSUID),
        "rbind" => Sets(MsFlags::MS_BIND | MsFlags::MS_REC),
        "relatime" => Sets(MsFlags::MS_RELATIME),
        "remount" => Sets(MsFlags::MS_REMOUNT),
        "ro" => Sets(MsFlags::MS_RDONLY),
        "rw" => Clears(MsFlags::MS_RDONLY),
        "strictatime" => Sets(MsFlags::MS_STRICTATIME),
        "suid" => Clears(MsFlags::MS_NOSUID),
        "sync" => Sets(MsFlags::MS_SYNCHRONOUS),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Options {
        let words: Vec<_> = words.iter().map(|&word| word.to_owned()).collect();
        Options::parse(&words)
    }

    #[test]
    fn options_are_sorted_by_their_recipients() {
        let words = [
            "rbind",
            "ro",
            "nosuid",
            "suid",
            "defaults",
            "loop",
            "direct-io",
            "index=off",
            "uidmap=0:1000:1,1:5000:9",
            "gidmap=0:1000:1",
            "userxattr",
        ];
        let expected = Options {
            flags: MsFlags::MS_BIND | MsFlags::MS_REC | MsFlags::MS_RDONLY,
            data: vec!["index=off".to_owned(), "userxattr".to_owned()],
            is_loop: true,
            is_direct: true,
            uidmap: Some("0:1000:1,1:5000:9".to_owned()),
            gidmap: Some("0:1000:1".to_owned()),
        };
        assert_eq!(parse(&words), expected);
        let data = parse(&words).data().unwrap();
        assert_eq!(data.as_deref(), Some("index=off,userxattr"));
        assert_eq!(parse(&["ro"]).data().unwrap(), None);
    }

    #[test]
    fn the_error_of_data_longer_than_a_page_has_the_length() {
        let long = format!("lowerdir={}", "x".repeat(5000));
        let error = parse(&[&long]).data().unwrap_err().to_string();
        assert!(error.contains("5009 bytes"), "{error}");
    }
}
