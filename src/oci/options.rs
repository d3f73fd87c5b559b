//! containerd's options of a container, and their copy in the bundle, which the `delete` command
//! reads.

use std::io;
use std::path::Path;

use containerd_shim::util::OPTIONS_FILE_NAME;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{
    self, CodedInputStream, CodedOutputStream, Message, UnknownValueRef, rt,
};
use containerd_shim_protos::shim::oci;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Bundle;
use usher_api::runtime_options::{RemovedOption, plain, refusal};
use usher_linux::stdio::Owner;

/// The options of containerd's runc shim (`containerd.runc.v1.Options`), with the same meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// True to enter the root file system without pivot_root(2). A RAM disk does not support that
    /// call.
    pub no_pivot_root: bool,
    /// True if the container shares the session keyring of the process that creates it.
    pub no_new_keyring: bool,
    /// Cgroup for the shim itself, below the root of each hierarchy.
    pub shim_cgroup: String,
    /// UID that owns the pipes of the container's processes; [0 means not given](Options::owner).
    pub io_uid: u32,
    pub io_gid: u32,
    /// The OCI runtime; `runc` if empty.
    pub binary_name: String,
    /// Directory of the OCI runtime's state.
    pub root: String,
    /// Path of criu; containerd 2.0 has no such option any more.
    pub criu_path: String,
    /// True if systemd makes the cgroups.
    pub systemd_cgroup: bool,
    /// Checkpoint from which the container is restored.
    pub criu_image_path: String,
    /// Directory for criu's files and logs of a restore.
    pub criu_work_path: String,
    /// Address at which a sandbox serves its tasks. Only containerd uses this option.
    pub task_api_address: String,
    pub task_api_version: u32,
}

/// Names of all options. They are the names of the fields of [`Options`], and the keys in the
/// bundle's copy of the options.
const NAMES: [&str; 13] = [
    "no_pivot_root",
    "no_new_keyring",
    "shim_cgroup",
    "io_uid",
    "io_gid",
    "binary_name",
    "root",
    "criu_path",
    "systemd_cgroup",
    "criu_image_path",
    "criu_work_path",
    "task_api_address",
    "task_api_version",
];

/// Name of the message with the options of containerd's runc shim.
const RUNC: &str = "containerd.runc.v1.Options";
/// Name of the message with the options of other runtime types.
const GENERIC: &str = "runtimeoptions.v1.Options";

/// Directory that exists only if systemd runs (sd_booted(3)).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

/// Field number of the option `criu_path`, which later versions of the message do not have.
const CRIU_PATH: u32 = 8;

/// Tags of `runtimeoptions.v1.Options`: field number and wire type.
const CONFIG_PATH: u32 = (2 << 3) | 2;
const CONFIG_BODY: u32 = (CONFIG_BODY_FIELD << 3) | 2;
const CONFIG_BODY_FIELD: u32 = 3;

/// Runtime options that cannot be used.
#[derive(Debug, Error)]
pub enum OptionsError {
    #[error("runtime options cannot be decoded: {0}")]
    Undecoded(#[from] protobuf::Error),
    #[error("runtime options are of type {0:?}; expected {RUNC} or {GENERIC}")]
    OtherType(String),
    #[error("cannot read runtime options in {}: {error}", path.escape_debug())]
    Unread {
        path: String,
        #[source]
        error: io::Error,
    },
    #[error("cannot use runtime options in {}: {error}", path.escape_debug())]
    InvalidFile {
        path: String,
        #[source]
        error: OptionError,
    },
    #[error("runtime options: {0}")]
    Invalid(#[source] OptionError),
}

/// A runtime option that cannot be used.
#[derive(Debug, Error)]
pub enum OptionError {
    /// The parser's own message, in one line.
    #[error("{0}")]
    Malformed(String),
    #[error("{key:?} is unknown; expected an option of containerd.runc.v1.Options")]
    Unknown { key: String },
    #[error(transparent)]
    Removed(#[from] RemovedOption),
}

/// Reads the options of a Create. If containerd's CRI plugin does not know the runtime type, the
/// plugin passes on a table of options from its configuration. containerd 1.7 and later pass it as
/// text (`ConfigBody`), earlier versions as [the name of a file](name_a_file). In the second case,
/// the caller first has to [add the file's content](with_file).
///
/// # Errors
///
/// If the options have another type, cannot be decoded, or have an unknown key.
pub fn from_any(options: Option<&Any>) -> Result<Options, OptionsError> {
    let Some(any) = options.filter(|any| !any.type_url.is_empty()) else {
        return Ok(Options::default());
    };
    match name(any) {
        RUNC => {
            let options = oci::Options::parse_from_bytes(&any.value)?;
            match refusal("BinaryName", &options.binary_name) {
                Some(removed) => Err(OptionsError::Invalid(removed.into())),
                None => Ok(options.into()),
            }
        }
        GENERIC => {
            let (path, body) = generic(&any.value)?;
            let read = from_toml(&String::from_utf8_lossy(&body));
            read.map_err(|error| match path.is_empty() {
                true => OptionsError::Invalid(error),
                false => OptionsError::InvalidFile { path, error },
            })
        }
        _ => Err(OptionsError::OtherType(any.type_url.clone())),
    }
}

/// True if the message names a file with the options (`ConfigPath`), as the message of containerd
/// 1.6 does.
pub fn name_a_file(any: &Any) -> bool {
    file_of(any).is_some()
}

fn file_of(any: &Any) -> Option<String> {
    let (path, _) = generic(&any.value).ok().filter(|_| name(any) == GENERIC)?;
    Some(path).filter(|path| !path.is_empty())
}

/// If the message [names a file](name_a_file), adds the file's content to the message.
///
/// # Errors
///
/// If the file cannot be read.
pub fn with_file(mut any: Any) -> Result<Any, OptionsError> {
    let Some(path) = file_of(&any) else {
        return Ok(any);
    };
    let text = std::fs::read(&path).map_err(|error| OptionsError::Unread { path, error })?;
    let mut output = CodedOutputStream::vec(&mut any.value);
    // The message may already have this field. If a field occurs twice, protobuf uses the last one.
    output
        .write_bytes(CONFIG_BODY_FIELD, &text)
        .and_then(|()| output.flush())?;
    drop(output);
    Ok(any)
}

/// True if a message has options of a known type.
pub fn are_in(any: &Any) -> bool {
    matches!(name(any), RUNC | GENERIC)
}

fn name(any: &Any) -> &str {
    any.type_url.rsplit('/').next().unwrap_or_default()
}

/// Decodes `config_path` and `config_body` of a `runtimeoptions.v1.Options`. No library has this
/// message.
fn generic(bytes: &[u8]) -> containerd_shim_protos::protobuf::Result<(String, Vec<u8>)> {
    let (mut path, mut body) = (String::new(), Vec::new());
    let mut input = CodedInputStream::from_bytes(bytes);
    while let Some(tag) = input.read_raw_tag_or_eof()? {
        match tag {
            CONFIG_PATH => path = input.read_string()?,
            CONFIG_BODY => body = input.read_bytes()?,
            tag => rt::skip_field_for_tag(tag, &mut input)?,
        }
    }
    Ok((path, body))
}

/// Parses options in the form of containerd's configuration: `SystemdCgroup = true`.
fn from_toml(text: &str) -> Result<Options, OptionError> {
    let table: toml::Table = text
        .parse()
        .map_err(|error: toml::de::Error| one_line(error.message()))?;
    let mut named = toml::Table::new();
    for (key, value) in table {
        if let Some(removed) = refusal(&key, value.as_str().unwrap_or_default()) {
            return Err(removed.into());
        }
        named.insert(name_of(&key)?.to_owned(), value);
    }
    Options::deserialize(named).map_err(|error| one_line(&error.to_string()))
}

/// Returns the option with this key. Like containerd, ignores the key's capitalization.
fn name_of(key: &str) -> Result<&'static str, OptionError> {
    NAMES
        .into_iter()
        .find(|name| plain(name) == plain(key))
        .ok_or_else(|| OptionError::Unknown {
            key: key.to_owned(),
        })
}

fn one_line(error: &str) -> OptionError {
    OptionError::Malformed(error.trim().replace('\n', " "))
}

impl Options {
    /// Owner of the pipes of a process. If the options leave an ID out (0), root's ID in the
    /// container's user namespace takes its place. With another owner, the program could not reopen
    /// `/dev/stdout`. Docker leaves both IDs out, unless the shim is containerd's own.
    pub fn owner(&self, bundle: &Bundle) -> Owner {
        let (root_uid, root_gid) = bundle.root();
        let or = |id: u32, root: u32| if id == 0 { root } else { id };
        Owner {
            uid: or(self.io_uid, root_uid),
            gid: or(self.io_gid, root_gid),
        }
    }
}

impl From<oci::Options> for Options {
    fn from(options: oci::Options) -> Options {
        let criu_path = match options.special_fields.unknown_fields().get(CRIU_PATH) {
            Some(UnknownValueRef::LengthDelimited(path)) => {
                String::from_utf8_lossy(path).into_owned()
            }
            _ => String::new(),
        };
        Options {
            no_pivot_root: options.no_pivot_root,
            no_new_keyring: options.no_new_keyring,
            shim_cgroup: options.shim_cgroup,
            io_uid: options.io_uid,
            io_gid: options.io_gid,
            binary_name: options.binary_name,
            root: options.root,
            criu_path,
            systemd_cgroup: options.systemd_cgroup,
            criu_image_path: options.criu_image_path,
            criu_work_path: options.criu_work_path,
            task_api_address: options.task_api_address,
            task_api_version: options.task_api_version,
        }
    }
}

/// True if systemd has to make the cgroups although the caller has configured no options. Such a
/// caller requests this by a cgroup path in systemd's form. False if systemd does not run.
pub fn implies_systemd_cgroup(sent: Option<&Any>, options: &Options, bundle: &Bundle) -> bool {
    let is_configured = sent.is_some_and(|sent| are_configured(sent, options));
    !is_configured && bundle.has_systemd_cgroup() && systemd_runs()
}

pub(super) fn systemd_runs() -> bool {
    Path::new(SYSTEMD_RUNS).is_dir()
}

/// True if the caller's configuration has a table of options. `options` are the options in `sent`.
/// Without such a table, containerd may still send options for a container in a pod without a pause
/// container. These options are only the address and version of the shim's Task API.
fn are_configured(sent: &Any, options: &Options) -> bool {
    if name(sent) != RUNC {
        return !sent.value.is_empty();
    }
    let address_only = Options {
        task_api_address: options.task_api_address.clone(),
        task_api_version: options.task_api_version,
        ..Options::default()
    };
    options.task_api_address.is_empty() || *options != address_only
}

/// Writes the copy of the options into the bundle.
///
/// # Errors
///
/// If the file cannot be written.
pub fn save(bundle: &Path, options: &Options) -> io::Result<()> {
    std::fs::write(bundle.join(OPTIONS_FILE_NAME), serde_json::to_vec(options)?)
}

/// Reads the copy of the options in the bundle. Returns the defaults if there is no copy, for
/// example because the shim died before it wrote the copy.
pub fn load(bundle: &Path) -> Options {
    let json = std::fs::read(bundle.join(OPTIONS_FILE_NAME)).unwrap_or_default();
    serde_json::from_slice(&json).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(type_url: &str, value: Vec<u8>) -> Any {
        Any {
            type_url: type_url.to_owned(),
            value,
            ..Any::new()
        }
    }

    fn read(options: &Any) -> Result<Options, OptionsError> {
        with_file(options.clone()).and_then(|options| from_any(Some(&options)))
    }

    fn wrapped(field: u8, text: &str) -> Any {
        // Field 1 of the message names a type, and is ignored.
        let mut value = vec![10, 1, b'x', (field << 3) | 2, text.len() as u8];
        value.extend(text.as_bytes());
        any("runtimeoptions.v1.Options", value)
    }

    #[test]
    fn pipes_belong_to_root_of_the_user_namespace_unless_the_options_name_an_owner() {
        let bundle = r#"{"linux":{"namespaces":[{"type":"user"}],
            "uidMappings":[{"containerID":0,"hostID":100000,"size":65536}],
            "gidMappings":[{"containerID":0,"hostID":200000,"size":65536}]}}"#;
        let bundle: Bundle = serde_json::from_str(bundle).unwrap();
        let owner = |io_uid, io_gid, bundle: &Bundle| {
            let options = Options {
                io_uid,
                io_gid,
                ..Options::default()
            };
            let owner = options.owner(bundle);
            (owner.uid, owner.gid)
        };
        assert_eq!(owner(0, 0, &bundle), (100_000, 200_000));
        assert_eq!(owner(7, 0, &bundle), (7, 200_000));
        assert_eq!(owner(7, 8, &bundle), (7, 8));
        assert_eq!(owner(0, 0, &Bundle::default()), (0, 0));
    }

    #[test]
    fn the_runc_shims_options_are_decoded() {
        let mut options = oci::Options::new();
        options.set_binary_name("crun".to_owned());
        options.set_systemd_cgroup(true);
        let mut bytes = options.write_to_bytes().unwrap();
        bytes.extend([(8 << 3) | 2, 5]);
        bytes.extend(b"/criu");
        let read = from_any(Some(&any("containerd.runc.v1.Options", bytes))).unwrap();
        let expected = Options {
            binary_name: "crun".to_owned(),
            systemd_cgroup: true,
            criu_path: "/criu".to_owned(),
            ..Options::default()
        };
        assert_eq!(read, expected);
    }

    #[test]
    fn options_with_nothing_but_the_task_address_are_not_configured() {
        let sent = |change: fn(&mut oci::Options)| {
            let mut options = oci::Options::new();
            options.set_task_api_address("unix:///run/containerd/s/1".to_owned());
            options.set_task_api_version(3);
            change(&mut options);
            any(RUNC, options.write_to_bytes().unwrap())
        };
        let is_configured = |any: &Any| are_configured(any, &from_any(Some(any)).unwrap());
        assert!(!is_configured(&sent(|_| {})));
        assert!(is_configured(&sent(|options| options.set_io_uid(7))));
        // This message lacks the address of the Task API. containerd sends such a message only if
        // its configuration has a table of options.
        assert!(is_configured(&any(RUNC, Vec::new())));
        assert!(!is_configured(&any(GENERIC, Vec::new())));
        assert!(is_configured(&wrapped(3, "SystemdCgroup = false\n")));
    }

    #[test]
    fn a_table_of_containerds_configuration_has_the_same_options() {
        let table = "SystemdCgroup = true\nbinary_name = \"crun\"\nIoUid = 7\nCriuPath = \"\"\n";
        let expected = Options {
            binary_name: "crun".to_owned(),
            systemd_cgroup: true,
            io_uid: 7,
            ..Options::default()
        };
        assert_eq!(from_any(Some(&wrapped(3, table))).unwrap(), expected);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("options.toml");
        std::fs::write(&file, table).unwrap();
        let named = wrapped(2, file.to_str().unwrap());
        assert!(name_a_file(&named));
        assert_eq!(read(&named).unwrap(), expected);
    }

    #[test]
    fn the_error_for_the_removed_runtime_says_what_to_use() {
        let engine = "runtime options: Engine is no longer an option, as usher-libcontainer was removed: remove Engine, \
                      and name runc or another OCI runtime in BinaryName";
        let binary = "runtime options: BinaryName is \"/opt/usher-libcontainer\", which is no longer part of \
                      usher: name runc or another OCI runtime in BinaryName";
        let mut message = oci::Options::new();
        message.set_binary_name("/opt/usher-libcontainer".to_owned());
        let message = message.write_to_bytes().unwrap();
        for (options, sentence) in [
            (wrapped(3, "Engine = \"libcontainer\""), engine),
            (wrapped(3, "Engine = \"\""), engine),
            (
                wrapped(3, "Engine = \"libcontainer\"\nBinaryName = \"crun\""),
                engine,
            ),
            (wrapped(3, "Engine = 7"), engine),
            (
                wrapped(3, "BinaryName = \"/opt/usher-libcontainer\""),
                binary,
            ),
            (any("containerd.runc.v1.Options", message), binary),
        ] {
            assert_eq!(read(&options).unwrap_err().to_string(), sentence);
        }
        let lower = read(&wrapped(3, "binary_name = \"usher-libcontainer\"")).unwrap_err();
        let lower = lower.to_string();
        assert!(
            lower.starts_with("runtime options: binary_name is"),
            "{lower}"
        );
    }

    /// An old bundle may name `usher-libcontainer`, an OCI runtime that usher no longer has. The
    /// `delete` command of a newer shim must still read the options of this bundle.
    #[test]
    fn a_bundle_that_names_the_removed_runtime_can_still_be_cleaned_up() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            binary_name: "usher-libcontainer".to_owned(),
            ..Options::default()
        };
        save(dir.path(), &options).unwrap();
        assert_eq!(load(dir.path()), options);
    }

    #[test]
    fn missing_options_have_their_defaults() {
        let empty = any("runtimeoptions.v1.Options", Vec::new());
        for options in [None, Some(&Any::new()), Some(&empty)] {
            assert_eq!(from_any(options).unwrap(), Options::default());
        }
    }

    #[test]
    fn the_error_for_malformed_options_is_one_sentence_that_names_them() {
        let refusals = [
            (wrapped(3, "SystemdCgruop = true"), "\"SystemdCgruop\""),
            (wrapped(3, "SystemdCgroup = 7"), "systemd_cgroup"),
            (wrapped(3, "="), "runtime options: "),
            (wrapped(2, "/no/such.toml"), "/no/such.toml: No such file"),
            (wrapped(2, "/no\nsuch"), r"/no\nsuch: No such file"),
            (any("kata.Options", Vec::new()), "\"kata.Options\""),
            (any("containerd.runc.v1.Options", vec![0xff]), "decoded"),
        ];
        for (options, named) in refusals {
            let error = read(&options).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn the_copy_in_the_bundle_can_be_read_by_both_shims() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            root: "/run/x".to_owned(),
            io_gid: 3,
            ..Options::default()
        };
        save(dir.path(), &options).unwrap();
        assert_eq!(load(dir.path()), options);
        let go = r#"{"root":"/run/x","io_gid":3}"#;
        std::fs::write(dir.path().join(OPTIONS_FILE_NAME), go).unwrap();
        assert_eq!(load(dir.path()), options);
    }
}
