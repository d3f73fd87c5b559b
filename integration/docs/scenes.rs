//! Tests that produce output which the manual shows. They run the manual's pods on a private
//! containerd. Such a test is called a scene.

use std::fs;
use std::process::Command;

use super::page::{Use, all};
use super::same::Rules;
use super::stage::{Stage, Title, play};
use crate::demo_pod;
use crate::harness::{Containerd, PATIENCE, eventually, run};

/// Defines the scenes. Each scene becomes a test that produces the output in the listed blocks of
/// the manual. A constant lists the blocks of all scenes.
macro_rules! scenes {
    ($($(#[$doc:meta])* $name:ident: [$($title:expr),* $(,)?] => $scene:expr;)*) => {
        pub const SCENES: &[(&str, &[Title])] = &[
            $((stringify!($name), &[$($title),*])),*
        ];
        $($(#[$doc])* #[test] fn $name() { play(&[$($title),*], $scene); })*
    };
}

const README: &str = "README.md";
const ANNOTATIONS: &str = "docs/annotations.md";
const CONCEPTS: &str = "docs/concepts.md";
const CONFIGURATION: &str = "docs/configuration.md";
const OPERATIONS: &str = "docs/operations.md";
const TROUBLESHOOTING: &str = "docs/troubleshooting.md";

/// A startup probe that succeeds when the test makes a file.
const READY: &str = r#"{"exec":{"command":["/bin/test","-e","/shared/ready"]},"periodMilliseconds":100,"failureThreshold":300}"#;

/// A startup probe that never succeeds.
const NEVER: &str = r#"{"tcpSocket":{"port":9},"periodMilliseconds":100,"failureThreshold":50}"#;

scenes! {
    a_container_waits_for_one_that_is_never_created: [
        (README, "usher inspect web"),
        (CONCEPTS, "usher inspect web"),
        (TROUBLESHOOTING, "usher inspect web"),
        (ANNOTATIONS, HELD),
    ] => |stage| {
        let migrate = stage.witness("web", "migrate", &[("usher/sidecars", "proxy")], &[]);
        let migrate = stage.host.spawn_attached(&migrate);
        stage.shows("usher inspect web");
        stage.says(HELD, |_| Stage::streams(&migrate));
        stage.host.must(&["tasks", "kill", "--signal", "SIGKILL", "web-migrate"]);
        migrate.finish(PATIENCE);
    };

    a_pod_from_its_start_to_its_end: [
        (OPERATIONS, "usher ps"),
        (OPERATIONS, "usher inspect checkout"),
        (OPERATIONS, "usher timeline checkout --width 94"),
        (TROUBLESHOOTING, "usher ps                 # the pods of this node, and how far they are"),
        (TROUBLESHOOTING, "usher --version; usher check"),
    ] => |stage| {
        let plan = [
            ("usher/init", "migrate"),
            ("usher/sidecars", "proxy, logs"),
            ("usher/apps", "worker, web"),
            ("usher/restart-policy", "OnFailure"),
            ("startup-probe.usher/proxy", READY),
        ];
        let host = &stage.host;
        host.run(&stage.witness("checkout", "worker", &plan, &["--ignore-term"]));
        host.run(&stage.witness("checkout", "web", &plan, &["--beat", "1s", "--stop-after", "1s"]));
        let script = "until test -e /shared/migrated; do sleep 0.1; done";
        host.run(&stage.script("checkout", "migrate", &plan, script));
        let proxy = host.spawn_run(&stage.witness("checkout", "proxy", &plan, &["--stop-after", "1s"]));
        eventually("the proxy is created", PATIENCE, || host.creations("checkout-proxy") > 0);
        let logs =
            host.spawn_run(&stage.witness("checkout", "logs", &plan, &["--stop-after", "500ms"]));
        stage.shows("usher ps");
        stage.shows("usher inspect checkout");
        stage.mark("migrated");
        for started in [proxy, logs] {
            assert!(started.finish(PATIENCE).ok());
        }
        stage.types(
            "usher ps                 # the pods of this node, and how far they are",
            &[("POD", "checkout")],
        );
        stage.mark("ready");
        // Wait for an event of the app. Otherwise the timeline would draw two marks at the same
        // place.
        stage.host.await_event("web", "beat");
        stage.types("usher --version; usher check", &[("POD", "checkout")]);
        let stopped = stage.type_in("usher stop checkout --grace-period 3s");
        assert!(stopped.ok(), "{stopped:?}");
        stage.shows("usher timeline checkout --width 94");
    };

    a_pod_is_stopped_by_usher_stop: [
        (OPERATIONS, "usher stop checkout2 --grace-period 3s"),
        (TROUBLESHOOTING, "usher inspect checkout2"),
    ] => |stage| {
        let plan = [
            ("usher/sidecars", "proxy"),
            ("usher/post-exit", "clean-up"),
            ("startup-probe.usher/proxy", READY),
        ];
        stage.mark("ready");
        let host = &stage.host;
        host.run(&stage.witness("checkout2", "proxy", &plan, &["--stop-after", "500ms"]));
        host.run(&stage.witness("checkout2", "worker", &plan, &["--ignore-term"]));
        host.run(&stage.witness("checkout2", "web", &plan, &["--stop-after", "1s"]));
        host.run(&stage.witness("checkout2", "clean-up", &plan, &[]));
        host.await_event("worker", "start");
        host.await_event("web", "start");
        stage.shows_once("usher stop checkout2 --grace-period 3s");
        stage.shows("usher inspect checkout2");
    };

    a_cleanup_hangs_and_another_waits_for_an_app_that_hangs: [
        (TROUBLESHOOTING, "usher inspect orders"),
        (TROUBLESHOOTING, "usher inspect billing"),
    ] => |stage| {
        let deaf = ["--ignore-term"];
        let plan = [("usher/sidecars", "proxy, logs"), ("usher/post-exit", "clean-up")];
        for name in ["proxy", "logs", "web"] {
            stage.host.run(&stage.witness("orders", name, &plan, &[]));
        }
        stage.host.run(&stage.witness("orders", "clean-up", &plan, &deaf));
        let plan = [("usher/apps", "api"), ("usher/post-exit", "clean-up")];
        stage.host.run(&stage.witness("billing", "api", &plan, &deaf));
        stage.host.run(&stage.witness("billing", "clean-up", &plan, &[]));
        stage.host.await_event("api", "start");
        for pod in ["orders", "billing"] {
            let stopped = stage.type_in(&format!("usher stop {pod} --no-wait --grace-period 16s"));
            assert!(stopped.ok(), "{stopped:?}");
        }
        stage.shows("usher inspect billing");
        stage.shows("usher inspect orders");
    };

    a_job_waits_for_further_apps: [(TROUBLESHOOTING, "usher inspect job")] => |stage| {
        let plan = [("usher/sidecars", "proxy"), ("usher/restart-policy", "Never")];
        stage.host.run(&stage.witness("job", "proxy", &plan, &[]));
        stage.host.run(&stage.witness("job", "work", &plan, &["--run-for", "100ms"]));
        stage.shows("usher inspect job");
    };

    an_unlisted_container_keeps_the_pod_of_a_complete_run: [(TROUBLESHOOTING, "usher inspect import")] => |stage| {
        let plan = [
            ("usher/sidecars", "proxy"),
            ("usher/apps", "work"),
            ("usher/restart-policy", "Never"),
        ];
        let host = &stage.host;
        host.run(&stage.witness("import", "agent", &plan, &[]));
        host.run(&stage.witness("import", "proxy", &plan, &[]));
        host.run(&stage.witness("import", "work", &plan, &["--run-for", "100ms"]));
        host.wait_exit("import-proxy");
        stage.shows("usher inspect import");
    };

    a_startup_probe_does_not_succeed: [(TROUBLESHOOTING, PROBED), (TROUBLESHOOTING, ENDED)] => |stage| {
        let plan = [
            ("usher/sidecars", "proxy"),
            ("usher/startup-timeout", "8s"),
            ("startup-probe.usher/proxy", READY),
        ];
        let host = &stage.host;
        host.run(&stage.witness("late", "proxy", &plan, &[]));
        let app = host.spawn_attached(&stage.witness("late", "app", &plan, &[]));
        let plan = [("usher/sidecars", "proxy"), ("startup-probe.usher/proxy", NEVER)];
        host.run(&stage.witness("never", "proxy", &plan, &[]));
        stage.says(PROBED, |stage| stage.type_in("usher inspect never").out());
        stage.says(ENDED, |_| Stage::streams(&app));
        app.finish(PATIENCE);
    };

    annotations_are_refused: [(TROUBLESHOOTING, REFUSED), (ANNOTATIONS, REFUSED_AS_WELL)] => |stage| {
        let probe = r#"{"tcpSocket":{"port":80,"host":"db"}}"#;
        let mut said = String::new();
        for plan in [
            &[("usher/sidecar", "proxy")][..],
            &[("usher/startup-timeout", "2min")],
            &[("usher/sidecars", "proxy"), ("startup-probe.usher/proxy", probe)],
            &[("usher/startup-timeout", "2min")],
            &[("usher/sidecars", "proxy"), ("usher/init", "proxy")],
        ] {
            let refused = stage.host.try_run(&stage.witness("refused", "proxy", plan, &[]));
            assert!(!refused.ok(), "{plan:?}");
            said.push_str(&refused.err());
            stage.host.must(&["containers", "delete", "refused-proxy"]);
        }
        stage.says(REFUSED, |_| said.clone());
        stage.says(REFUSED_AS_WELL, |_| said.clone());
    };

    a_start_times_out: [(TROUBLESHOOTING, IN_VAIN)] => |stage| {
        let plan = [
            ("usher/sidecars", "proxy"),
            ("usher/start-mode", "Block"),
            ("usher/startup-timeout", "2s"),
        ];
        let web = stage.host.try_run(&stage.witness("vain", "web", &plan, &[]));
        stage.says(IN_VAIN, |_| web.err());
    };

    a_shim_does_not_answer: [(TROUBLESHOOTING, "usher ps")] => |stage| {
        stage.host.run(&stage.witness("hung", "app", &[("usher/sidecars", "proxy?")], &[]));
        let pods = stage.type_in("usher ps -o json").out();
        let pods: serde_json::Value = serde_json::from_str(&pods).expect("JSON");
        let shim = pods["pods"][0]["shimPid"].as_u64().expect("its process");
        assert!(stage.type_in(&format!("kill -STOP {shim}")).ok());
        stage.shows("usher ps");
        assert!(stage.type_in(&format!("kill -CONT {shim}")).ok());
    };

    every_decision_is_in_the_log: [(OPERATIONS, LOGGED)] => |stage| {
        let plan = [
            ("usher/sidecars", "proxy"),
            ("usher/pre-exit", "remove-shard"),
            ("startup-probe.usher/proxy", READY),
        ];
        let host = &stage.host;
        host.run(&stage.witness("logged", "app", &plan, &["--stop-after", "400ms"]));
        host.run(&stage.witness("logged", "proxy", &plan, &[]));
        host.run(&stage.witness("logged", "remove-shard", &plan, &["--run-for", "1s"]));
        stage.mark("ready");
        host.await_event("app", "start");
        host.kill_all(&["logged-app", "logged-proxy"], "SIGTERM");
        host.wait_exit("logged-proxy");
        stage.says(LOGGED, |stage| stage.host.log_tail(10_000));
    };

    the_demo: [(CONCEPTS, "ms  who         what")] => |stage| {
        // The demo prints commands to try while the pod runs. Run these commands.
        let visit = |host: &Containerd| {
            for (command, _) in demo_pod::to_try(host) {
                let mut shell = Command::new("sh");
                shell.args(["-c", &command]);
                let seen = run(shell, PATIENCE);
                assert!(seen.ok() && seen.out().contains("shop"), "{command}: {seen:?}");
            }
        };
        let (moments, _) = demo_pod::play(&demo_pod::stage(), None, visit);
        // The page leaves out the lines about containerd.
        let told = moments.iter().filter(|moment| moment.who != "containerd");
        // The line about the probe is left out. The proxy may record the probe late, so the line
        // may come before or after the app's start.
        let told = told.filter(|moment| moment.what != "is probed");
        let lines = told.map(|moment| moment.line(&moments[0]));
        let lines: Vec<_> = [demo_pod::TITLES.to_owned()].into_iter().chain(lines).collect();
        stage.compares("ms  who         what", &lines.join("\n"), Rules::Live);
    };

    a_pod_made_with_ctr: [
        (OPERATIONS, "ctr run -d --runtime io.containerd.usher.v2 \\"),
    ] => |stage| {
        let rootfs = stage.host.dir().join("rootfs");
        stage.types(
            "ctr run -d --runtime io.containerd.usher.v2 \\",
            &[("/path/to/rootfs", rootfs.to_str().expect("text"))],
        );
        // `ctr` has made FIFOs in their default directory. Remove them.
        assert!(stage.type_in("rm -r /run/containerd/fifo").ok());
        // As the first process of a container, `sleep` ignores SIGTERM, so SIGKILL ends both
        // containers. usher reports 0 for a stopped sidecar.
        for name in ["app", "proxy"] {
            assert_eq!(stage.host.wait_exit(name), if name == "app" { 137 } else { 0 });
        }
    };

    a_node_is_checked: [
        (README, INSTALL),
        (CONFIGURATION, "usher check"),
        (OPERATIONS, "usher check"),
        (TROUBLESHOOTING, CHECK),
    ] => |stage| {
        stage.types(INSTALL, &[]);
        stage.types(CHECK, &[]);
        // `usher check` examines a node on which usher is not configured and no shim is on the
        // `PATH`.
        let config = stage.directory().join("empty.toml");
        fs::write(&config, "version = 2\n").expect("a configuration");
        let nothing = stage.checked(&config, "/usr/bin:/usr/sbin");
        stage.shows_with("usher check", &nothing);
    };

    a_pod_is_explained_before_it_runs: [
        (ANNOTATIONS, "Pod shop  shop.yaml"),
        (CONFIGURATION, "usher explain --config config.toml pod.yaml    # judges a pod by these rules, as this node would"),
    ] => |stage| {
        // The pod's manifest and the configuration are taken from the pages.
        let pages = all();
        let of = |file: &str, language: &str| {
            let page = pages.iter().find(|page| page.file == file).expect("a page");
            let mut blocks = page.blocks.iter();
            let block = blocks.find(|block| matches!(block.is_for(), Use::Language(it) if it == language));
            block.expect("a block").text.clone()
        };
        let directory = stage.directory();
        for (name, text) in [
            ("shop.yaml", of(README, "yaml")),
            ("pod.yaml", of(README, "yaml")),
            ("config.toml", of(CONFIGURATION, "toml")),
        ] {
            fs::write(directory.join(name), text).expect("a file");
        }
        let explained = stage.type_in("usher explain shop.yaml").out();
        stage.compares("Pod shop  shop.yaml", &explained, Rules::Exact);
        stage.types(
            "usher explain --config config.toml pod.yaml    # judges a pod by these rules, as this node would",
            &[],
        );
    };
}

const HELD: &str = "usher: migrate has been held for 5.001s: it waits for sidecar proxy (never created); if migrate is one of";
const PROBED: &str = "sidecar proxy is running for 4.67s, waiting for its startup probe, which has failed 46 of 50 times";
const ENDED: &str =
    "usher: app has not been started for 5.00108076s: it waits for sidecar proxy (not started yet)";
const REFUSED: &str = "… unknown annotation usher/sidecar; expected usher/ and one of init, native-init, sidecars, …; did you mean usher/sidecars?";
const REFUSED_AS_WELL: &str =
    "usher/startup-timeout: \"2min\" is not a duration; expected one such as 300ms, 90s or 1h30m";
const IN_VAIN: &str =
    "container web was not started within 2.000833381s: it waits for sidecar proxy (never created)";
const INSTALL: &str =
    "scripts/install --restart      # builds usher, and runs `usher install --restart`";
const CHECK: &str =
    "usher check        # on the node: names what is missing, with the command that cures it";
const LOGGED: &str = "app is held: it waits for proxy";
