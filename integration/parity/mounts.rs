//! Mounts of the root file system, of every kind that containerd's snapshotters return.

use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_shim_protos::api::CreateTaskRequest;
use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::types::mount::Mount;
use serde_json::{Value, json};

use super::both;
use crate::harness::{
    BareShim, Containerd, PATIENCE, add_user_namespace, oci_runtime, run, runtime_under_test,
};

fn mount(kind: &str, source: &Path, options: &[&str]) -> Mount {
    Mount {
        type_: kind.to_owned(),
        source: source.display().to_string(),
        options: options.iter().map(|&option| option.to_owned()).collect(),
        ..Mount::new()
    }
}

/// A shim for a container that runs a shell script. The container's root file system is the
/// directory `rootfs` of the bundle.
fn shim_of<'host>(
    host: &'host Containerd,
    runtime: &str,
    script: &str,
    edit: impl FnOnce(&mut Value),
) -> BareShim<'host> {
    BareShim::start(host, runtime, "a", &["/bin/sh", "-c", script], |config| {
        config["root"]["path"] = json!("rootfs");
        edit(config);
    })
}

/// Runs the container. Returns the content of the file `/shared/seen`, and the exit code. Checks
/// that no mount remains.
#[track_caller]
fn seen_by(host: &Containerd, shim: &BareShim<'_>, request: &CreateTaskRequest) -> (String, u32) {
    let api = shim.api();
    api.create(request).expect("Create");
    api.start("a", "").expect("Start");
    let code = api.wait("a", "").expect("Wait").exit_status;
    api.delete("a", "").expect("Delete");
    assert_eq!(mounts_of(host), Vec::<String>::new());
    let seen = fs::read_to_string(host.shared_dir().join("seen")).unwrap_or_default();
    (seen, code)
}

/// The mount points that are left in the bundle.
fn mounts_of(host: &Containerd) -> Vec<String> {
    let bundle = format!("mount {}", host.dir().join("bundles").display());
    let remains = host.remains().into_iter();
    remains.filter(|what| what.starts_with(&bundle)).collect()
}

fn run_with(host: &Containerd, runtime: &str, mounts: Vec<Mount>, script: &str) -> (String, u32) {
    let shim = shim_of(host, runtime, script, |_| {});
    let request = CreateTaskRequest {
        rootfs: mounts,
        ..shim.create_request()
    };
    seen_by(host, &shim, &request)
}

/// Creates a container with this mount, which must fail, and returns the error. Checks that no
/// mount remains.
fn refusal(host: &Containerd, runtime: &str, mount: Mount) -> String {
    let shim = shim_of(host, runtime, "exit 0", |_| {});
    let request = CreateTaskRequest {
        rootfs: vec![mount],
        ..shim.create_request()
    };
    let (_, message) = shim.api().create(&request).expect_err("a refusal");
    assert_eq!(mounts_of(host), Vec::<String>::new());
    message
}

/// The harness's root file system, and the options of an overlay whose upper directory and work
/// directory are new and empty.
fn overlay_dirs(host: &Containerd) -> (PathBuf, [String; 2]) {
    let [upper, work] = ["upper", "work"].map(|name| {
        let path = host.dir().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    });
    let options = [
        format!("upperdir={}", upper.display()),
        format!("workdir={}", work.display()),
    ];
    (host.dir().join("rootfs"), options)
}

#[test]
fn a_bind_mount_is_writable_unless_it_is_read_only() {
    // crun makes the root file system writable unless the configuration says read-only.
    let read_only = match oci_runtime().as_str() {
        "crun" => "written\n",
        _ => "refused\n",
    };
    for (option, expected) in [("rw", "written\n"), ("ro", read_only)] {
        let seen = both(|host, runtime| {
            let root = mount("bind", &host.dir().join("rootfs"), &["rbind", option]);
            let script =
                "(touch /file && echo written || echo refused) > /shared/seen 2> /dev/null";
            run_with(host, runtime, vec![root], script)
        });
        assert_eq!(seen, (expected.to_owned(), 0), "{option}");
    }
}

#[test]
fn an_overlay_whose_options_exceed_a_page_is_mounted() {
    let seen = both(|host, runtime| {
        let (base, [upper, work]) = overlay_dirs(host);
        let layers = host
            .dir()
            .join("a-directory-of-a-length-that-snapshotters-have/snapshots");
        let mut lower: Vec<String> = (0..100)
            .map(|number| {
                let layer = layers.join(number.to_string()).join("fs");
                fs::create_dir_all(layer.join("layers")).unwrap();
                fs::write(layer.join("layers").join(number.to_string()), "").unwrap();
                layer.display().to_string()
            })
            .collect();
        symlink(&base, layers.join("base")).unwrap();
        lower.push(layers.join("base").display().to_string());
        let lower = format!("lowerdir={}", lower.join(":"));
        assert!(lower.len() > 4096, "{}", lower.len());
        let overlay = mount("overlay", Path::new("overlay"), &[&upper, &work, &lower]);
        run_with(
            host,
            runtime,
            vec![overlay],
            "ls /layers | sort -n | tail -n 1 > /shared/seen",
        )
    });
    assert_eq!(seen, ("99\n".to_owned(), 0));
}

#[test]
fn an_image_file_is_mounted_by_a_loop_device_that_is_freed_with_it() {
    let seen = both(|host, runtime| {
        let image = host.dir().join("image");
        let mut make = Command::new("mke2fs");
        make.args(["-q", "-t", "ext4", "-d"])
            .arg(host.dir().join("rootfs"));
        make.arg(&image).arg("32M");
        let made = run(make, PATIENCE);
        assert!(made.ok(), "{}", made.err());
        let script = "(touch /file && echo written || echo refused) > /shared/seen 2> /dev/null";
        ["rw", "ro"].map(|option| {
            let root = mount("ext4", &image, &["loop", option]);
            let seen = run_with(host, runtime, vec![root], script);
            fs::remove_dir_all(host.dir().join("bundles/a")).unwrap();
            let attached = format!("{}\n", image.display());
            let devices = fs::read_dir("/sys/block").unwrap().flatten();
            let mut files = devices.map(|device| device.path().join("loop/backing_file"));
            let left =
                files.any(|file| fs::read_to_string(file).is_ok_and(|file| file == attached));
            (seen, left)
        })
    });
    assert_eq!(
        seen,
        ["written\n", "refused\n"].map(|said| ((said.to_owned(), 0), false))
    );
}

#[test]
fn a_failed_mount_is_named_and_leaves_nothing() {
    let named = both(|host, runtime| {
        let (base, _) = overlay_dirs(host);
        let wrong = format!("lowerdir={}", base.join("nowhere").display());
        let refusals = [
            mount("bind", Path::new("/no/such/source"), &["rbind"]),
            mount("overlay", Path::new("overlay"), &[&wrong, &wrong]),
            mount("nosuchfs", Path::new("none"), &[]),
            mount("ext4", Path::new("/no/such/image"), &["loop"]),
        ];
        refusals.map(|mount| {
            let words = match mount.type_.as_str() {
                "bind" => "/no/such/source",
                "ext4" => "/no/such/image",
                other => other,
            };
            let words = words.to_owned();
            let refusal = refusal(host, runtime, mount);
            fs::remove_dir_all(host.dir().join("bundles/a")).unwrap();
            // containerd's own shim does not name the mount that failed, since containerd 1.7.
            host.is_reference() || refusal.contains(&words)
        })
    });
    assert_eq!(named, [true; 4]);
}

#[test]
fn mount_options_that_exceed_a_page_are_refused_in_one_line() {
    let host = Containerd::start();
    let runtime = runtime_under_test();
    let (base, [upper, work]) = overlay_dirs(&host);
    // The shim shortens the paths of layers if they have a common directory other than `/`. These
    // layers have none.
    let lower = format!("lowerdir={}:/{}", base.display(), "x".repeat(5000));
    let overlay = mount("overlay", Path::new("overlay"), &[&upper, &work, &lower]);
    let said = refusal(&host, &runtime, overlay);
    assert!(
        said.contains("expected at most 4095") && said.lines().count() == 1,
        "{said}"
    );
}

#[test]
fn a_mount_target_stays_below_the_root_despite_symbolic_links() {
    // Only our shim is tested: the shim of containerd 1.6 ignores a mount's target.
    let host = Containerd::start();
    let outside = host.dir().join("outside");
    fs::create_dir(&outside).unwrap();
    let base = host.dir().join("rootfs");
    fs::create_dir_all(base.join(outside.strip_prefix("/").unwrap())).unwrap();
    symlink(&outside, base.join("link")).unwrap();
    let root = mount("bind", &base, &["rbind", "rw"]);
    let below = |target: &str| Mount {
        target: target.to_owned(),
        ..mount("tmpfs", Path::new("tmpfs"), &["size=1m"])
    };
    let mounts = vec![root, below("/run"), below("/link")];
    let script = "cut -d ' ' -f 5 /proc/self/mountinfo > /shared/seen";
    let (seen, code) = run_with(&host, &runtime_under_test(), mounts, script);
    let places: Vec<_> = seen.lines().collect();
    let inside = outside.display().to_string();
    assert!(
        code == 0 && places.contains(&"/run") && places.contains(&inside.as_str()),
        "{seen}"
    );
}

/// Mappings of user and group ids. Each has two parts: one for the id 0, and one for all ids from 1
/// on.
const UIDS: &str = "uidmap=0:100000:1,1:100001:65535";
const GIDS: &str = "gidmap=0:200000:1,1:200001:65535";

/// A command that prints the owners of two files. On the file system, the first file belongs to
/// 0:0, and the second to 7:8.
const OWNERS: &str = "/bin/busybox stat -c %u:%g /bin/busybox /seven > /shared/seen";

/// A root file system with a file that belongs to 7:8.
fn file_of_seven(host: &Containerd) -> PathBuf {
    let base = host.dir().join("rootfs");
    fs::write(base.join("seven"), "").unwrap();
    chown(base.join("seven"), Some(7), Some(8)).unwrap();
    base
}

#[test]
fn an_id_mapped_bind_mount_maps_the_owners() {
    let host = Containerd::start();
    let base = file_of_seven(&host);
    let root = mount("bind", &base, &["rbind", "rw", UIDS, GIDS]);
    let seen = run_with(&host, &runtime_under_test(), vec![root], OWNERS);
    assert_eq!(seen, ("100000:200000\n100007:200008\n".to_owned(), 0));
}

#[test]
fn an_id_mapped_overlay_maps_the_owners_in_all_layers() {
    let host = Containerd::start();
    let base = file_of_seven(&host);
    let (_, [upper, work]) = overlay_dirs(&host);
    let empty = host.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let lower = format!("lowerdir={}:{}", empty.display(), base.display());
    let overlay = mount(
        "overlay",
        Path::new("overlay"),
        &[&upper, &work, &lower, UIDS, GIDS],
    );
    let seen = run_with(&host, &runtime_under_test(), vec![overlay], OWNERS);
    assert_eq!(seen, ("100000:200000\n100007:200008\n".to_owned(), 0));
    assert!(base.join("bin/busybox").exists(), "the layer is as it was");
}

#[test]
fn an_impossible_id_mapping_is_refused_with_the_reason() {
    let host = Containerd::start();
    let base = host.dir().join("rootfs");
    let of = |source: &Path, options: &[&str]| mount("bind", source, options);
    let refusals = [
        (of(&base, &["rbind", UIDS]), "expected both"),
        (of(&base, &["rbind", "uidmap=0:1", GIDS]), "\"0:1\""),
        (
            of(&base, &["rbind", "uidmap=0:5:9,3:50:1", GIDS]),
            "cannot write uidmap=0:5:9,3:50:1",
        ),
        (
            of(Path::new("/sys"), &["bind", UIDS, GIDS]),
            "cannot map the owners",
        ),
    ];
    for (mount, words) in refusals {
        let said = refusal(&host, &runtime_under_test(), mount);
        fs::remove_dir_all(host.dir().join("bundles/a")).unwrap();
        assert!(said.contains(words) && said.lines().count() == 1, "{said}");
    }
}

#[test]
fn a_container_in_a_user_namespace_owns_its_files_and_can_reopen_its_output() {
    let host = Containerd::start();
    let base = file_of_seven(&host);
    let (_, [upper, work]) = overlay_dirs(&host);
    for directory in ["upper", "work"] {
        chown(host.dir().join(directory), Some(100_000), Some(200_000)).unwrap();
    }
    chown(host.shared_dir(), Some(100_000), Some(200_000)).unwrap();
    let lower = format!("lowerdir={}", base.display());
    let overlay = mount(
        "overlay",
        Path::new("overlay"),
        &[&upper, &work, &lower, UIDS, GIDS],
    );
    let script = format!("echo anew > /dev/stdout && touch /mine && {OWNERS}");
    let shim = shim_of(&host, &runtime_under_test(), &script, |config| {
        add_user_namespace(config, 100_000, 200_000);
    });
    let mut options = Options::new();
    (options.io_uid, options.io_gid) = (100_000, 200_000);
    let (request, _output) = shim.create_request_with_stdio();
    let request = CreateTaskRequest {
        rootfs: vec![overlay],
        options: MessageField::some(Any {
            type_url: "containerd.runc.v1.Options".to_owned(),
            value: options.write_to_bytes().unwrap(),
            ..Any::new()
        }),
        ..request
    };
    let seen = seen_by(&host, &shim, &request);
    assert_eq!(seen, ("0:0\n7:8\n".to_owned(), 0));
}
