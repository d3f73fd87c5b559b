//! Containers from images: the shim mounts and unmounts their root file system.

use super::{both, script};
use crate::harness::{ContainerSpec, PATIENCE, eventually};

fn from_image_with(snapshotter: &'static str) {
    let seen = both(|host, runtime| {
        let image = host.import_image();
        let container = |id, text| {
            let snapshotter = ["--snapshotter", snapshotter];
            script(runtime, id, text).image(&image).option(&snapshotter)
        };
        host.run(&container(
            "a",
            "echo mine > /file; echo up > /shared/up; sleep 1000",
        ));
        let up = host.shared_dir().join("up");
        eventually("the container runs", PATIENCE, || up.exists());
        let mounts = |id: &str| {
            let at = format!("mount {}/rootfs", host.bundle_dir(id).display());
            host.remains().iter().filter(|what| **what == at).count()
        };
        // The second container uses the same image. It must not see the file of the first
        // container.
        let other = host.run_attached(&container("b", "cat /file 2> /dev/null || echo none"));
        let (while_running, read) = (mounts("a"), host.exec("a", &["/bin/cat", "/file"]).out());
        host.kill("a", "SIGKILL");
        host.wait_exit("a");
        host.delete("a");
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        (while_running, read, other.out())
    });
    assert_eq!(seen, (1, "mine\n".to_owned(), "none\n".to_owned()));
}

#[test]
fn an_image_is_mounted_by_overlayfs() {
    from_image_with("overlayfs");
}

#[test]
fn an_image_is_mounted_by_bind_mounts() {
    from_image_with("native");
}

#[test]
fn an_image_is_unmounted_when_the_start_fails() {
    let ok = both(|host, runtime| {
        let image = host.import_image();
        let spec = ContainerSpec::new("a")
            .runtime(runtime)
            .image(&image)
            .args(&["/bin/nope"]);
        let ok = host.try_run(&spec).ok();
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        ok
    });
    assert!(!ok);
}
