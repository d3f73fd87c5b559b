//! A private containerd for a test of the manual. It also keeps the output blocks of a page, which
//! the commands of the test must print.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::command::commands;
use super::left_out::NOT_RUN;
use super::page::{Block, Use, all};
use super::same::{Rules, is_said, is_same, is_sentence};
use crate::harness::{
    Background, ContainerSpec, Containerd, Finished, PATIENCE, installed_program, run, scaled,
    shim_dir,
};

/// A page's file, and the first line of a block on it.
pub type Title = (&'static str, &'static str);

pub struct Stage {
    pub host: Containerd,
    blocks: Vec<Block>,
    shown: BTreeSet<String>,
}

/// Runs a test of the manual, and checks that it produced all of its blocks.
pub fn play(titles: &[Title], scene: fn(&mut Stage)) {
    let is_ours = |block: &Block| {
        let mut titles = titles.iter();
        titles.any(|(file, title)| block.at.file == *file && block.title() == *title)
    };
    let blocks = all()
        .into_iter()
        .flat_map(|page| page.blocks)
        .filter(is_ours);
    let mut stage = Stage {
        host: Containerd::start(),
        blocks: blocks.collect(),
        shown: BTreeSet::new(),
    };
    if Path::new("/etc/usher").exists() {
        // Hide the machine's own configuration of usher, because it would affect the scene.
        let hidden = stage.type_in("mount -t tmpfs none /etc/usher");
        assert!(hidden.ok(), "{hidden:?}");
    }
    scene(&mut stage);
    for (_, title) in titles {
        assert!(
            stage.shown.contains(*title),
            "the scene never shows {title:?}"
        );
    }
}

impl Stage {
    /// Runs a line of the page in the test's directory, in the mount namespace of the test's
    /// containerd and shims.
    pub fn type_in(&self, line: &str) -> Finished {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.directory());
        command.env(
            "PATH",
            format!("{}:{}", shim_dir().display(), self.host.path),
        );
        command.env("CONTAINERD_ADDRESS", self.host.socket());
        command.env("CONTAINERD_NAMESPACE", &self.host.namespace);
        // The page shows timelines without Unicode characters, so tell `usher` that the terminal
        // has none.
        command.env("LC_ALL", "C");
        command.env("CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS", "1");
        self.host.enter(&mut command);
        run(command, PATIENCE)
    }

    pub fn directory(&self) -> PathBuf {
        let directory = self.host.dir().join("typed");
        fs::create_dir_all(&directory).expect("a directory");
        directory
    }

    /// The output of a command, with containerd's default namespace in place of the test's
    /// namespace.
    fn printed(&self, finished: &Finished) -> String {
        let all = finished.out() + &finished.err();
        all.replace(&self.host.namespace, "default")
    }

    fn blocks(&mut self, title: &str) -> Vec<&Block> {
        self.shown.insert(title.to_owned());
        let blocks: Vec<_> = self
            .blocks
            .iter()
            .filter(|block| block.title() == title)
            .collect();
        assert!(!blocks.is_empty(), "the scene has no {title:?}");
        blocks
    }

    /// Runs the commands of the block, and compares their output with that on the page.
    #[track_caller]
    pub fn shows(&mut self, title: &str) {
        self.shows_within(title, "", PATIENCE);
    }

    /// Does the same as `shows`, but appends `words` to each command.
    #[track_caller]
    pub fn shows_with(&mut self, title: &str, words: &str) {
        self.shows_within(title, words, PATIENCE);
    }

    /// Does the same as `shows` for a command that can run only once.
    #[track_caller]
    pub fn shows_once(&mut self, title: &str) {
        self.shows_within(title, "", Duration::ZERO);
    }

    #[track_caller]
    fn shows_within(&mut self, title: &str, words: &str, limit: Duration) {
        self.blocks(title);
        for block in self.blocks.iter().filter(|block| block.title() == title) {
            let Use::Transcript(transcript) = block.is_for() else {
                panic!("{} is no transcript", block.at);
            };
            for (line, expected) in transcript {
                // On a busy machine a shim may answer late, so repeat the command.
                let end = Instant::now() + scaled(limit);
                loop {
                    let printed = self.printed(&self.type_in(&format!("{line} {words}")));
                    if is_same(&expected, &printed, Rules::Live) {
                        break;
                    }
                    let at = &block.at;
                    assert!(
                        Instant::now() < end,
                        "{at} has\n{expected}\nand `{line}` prints\n{printed}"
                    );
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Checks that the page's text appears in a program's output: line by line, or as one sentence.
    #[track_caller]
    pub fn says(&mut self, title: &str, printed: impl Fn(&Stage) -> String) {
        self.blocks(title);
        for block in self.blocks.iter().filter(|block| block.title() == title) {
            let end = Instant::now() + scaled(PATIENCE);
            loop {
                let printed = printed(self);
                if is_said(&block.text, &printed) || is_sentence(&block.text, &printed) {
                    break;
                }
                let (at, text) = (&block.at, &block.text);
                assert!(
                    Instant::now() < end,
                    "{at} has\n{text}\nand it said\n{printed}"
                );
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    /// Checks that the page's block equals the printed text.
    #[track_caller]
    pub fn compares(&mut self, title: &str, printed: &str, rules: Rules) {
        for block in self.blocks(title) {
            let (at, text) = (&block.at, &block.text);
            assert!(
                is_same(text, printed, rules),
                "{at} has\n{text}\nand it is\n{printed}"
            );
        }
    }

    /// Runs the block's commands. `names` lists words of the page, each with its replacement. Each
    /// command has to succeed.
    #[track_caller]
    pub fn types(&mut self, title: &str, names: &[(&str, &str)]) {
        let mut lines = Vec::new();
        for block in self.blocks(title) {
            let all = commands(&block.at, &block.text);
            lines.extend(all.into_iter().map(|command| (block.at.clone(), command)));
        }
        for (at, command) in lines {
            if NOT_RUN
                .iter()
                .any(|(begin, _)| command.line().starts_with(begin))
            {
                continue;
            }
            let word = |word: &String| {
                let name = names.iter().find(|(name, _)| word == name);
                name.map_or(word.clone(), |(_, name)| (*name).to_owned())
            };
            let words: Vec<String> = command.words.iter().map(word).collect();
            let mut line = shlex::try_join(words.iter().map(String::as_str)).expect("words");
            if line == "usher check" {
                line = format!("{line} {}", self.node());
            }
            let finished = self.type_in(&line);
            assert!(finished.ok(), "{at}: `{line}`: {finished:?}");
        }
    }

    /// A container of a pod that runs a shell script.
    pub fn script(
        &self,
        pod: &str,
        name: &str,
        annotations: &[(&str, &str)],
        script: &str,
    ) -> ContainerSpec {
        self.witness(pod, name, annotations, &[]).script(script)
    }

    /// A container that runs a witness. Its pod is in the namespace `shop`.
    pub fn witness(
        &self,
        pod: &str,
        name: &str,
        annotations: &[(&str, &str)],
        options: &[&str],
    ) -> ContainerSpec {
        ContainerSpec::witness_of(pod, name, annotations, options)
            .annotation("io.kubernetes.cri.sandbox-namespace", "shop")
            .annotation("io.kubernetes.cri.sandbox-name", pod)
    }

    /// Makes a file for which a container waits.
    pub fn mark(&self, name: &str) {
        fs::write(self.host.shared_dir().join(name), "").expect("a mark");
    }

    /// Standard output and standard error of a container that runs in the background.
    pub fn streams(running: &Background) -> String {
        running.stdout() + &running.stderr()
    }

    /// Options with which `usher check` examines the test's containerd and not the machine's. usher
    /// is installed by hand, as the page describes.
    pub fn node(&self) -> String {
        let pages = all();
        let mut blocks = pages.iter().flat_map(|page| &page.blocks);
        let table = blocks
            .find(|block| block.text.starts_with("version = 2"))
            .expect("the runtime's table");
        // The page tells administrators to add this table: containerd 1.x forgets its built-in
        // runtime if the configuration names another one.
        let runc = r#"[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2""#;
        let config = self.directory().join("containerd.toml");
        fs::write(&config, format!("{}{runc}\n", table.text)).expect("a configuration");
        self.checked(&config, "$PATH")
    }

    /// Options with which `usher check` examines this configuration of containerd and this `PATH`.
    pub fn checked(&self, config: &Path, path: &str) -> String {
        let containerd = installed_program("containerd");
        format!(
            "--config {} --containerd {} --path {path}",
            config.display(),
            containerd.display()
        )
    }
}
