//! Tests of plans for configurations of any form. These tests compute containerd's effective
//! configuration: they merge the values of all files. The integration tests ask containerd itself.

use std::path::{Path, PathBuf};

use anyhow::anyhow;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use toml::{Table, Value};

use super::super::containerd::{CRI, Effective, NAME, RUNC_TYPE, Registration, Source, SourceForm};
use super::found::{Found, Texts};
use super::plan::Goal;
use super::source::SourceText;

/// Runtimes of the CRI plugin, in each form that TOML has for them.
const RUNTIMES: [&str; 5] = [
    "[plugins.\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc]\nruntime_type = 'x'\n",
    "[plugins.'io.containerd.cri.v1.runtime']\n  containerd.runtimes.runc.runtime_type = 'x' # dotted\n",
    "[plugins]\n\"io.containerd.cri.v1.runtime\".containerd.runtimes.runc = { runtime_type = 'x' }\n",
    "[ plugins . \"io.containerd.cri.v1.runtime\" . containerd . runtimes ]\nrunc = {runtime_type='x'}\n",
    IN_BRACES,
];

const IN_BRACES: &str = "[plugins.\"io.containerd.cri.v1.runtime\"]\n\
    containerd = { runtimes = { runc = { runtime_type = 'x' } } }\n";

/// Parts of a configuration that contain no runtimes.
const OTHERS: [&str; 8] = [
    "# a comment of mine\n\n",
    "[debug]\n  level = \"warn\"   # loud\n\n\n",
    "[timeouts]\n\"io.containerd.timeout\" = '2s'\ninline = { a = 1, b.c = [ 1,2 ] }\n",
    "[[streams]]\nname = 'one'\n\n[[streams]]\nname = 'two'\n",
    "[text]\nmany = \"\"\"\nlines\n# >> no comment\n\"\"\"\n",
    "[list]\nof = [\n  'a', # first\n  'b',\n]\n",
    "\t[ttrpc] # tabs\n\taddress\t=\t''\n",
    "#\u{e4}\n[grpc]\n  'max' = 0x10\n",
];

fn found(texts: &Texts) -> Found {
    let config = PathBuf::from("/etc/containerd/config.toml");
    let found = Found::new(config, texts.main.clone(), || Ok(3));
    let found = found.and_then(|found| found.with_part(texts.part.clone()));
    found.unwrap()
}

fn main_only(text: &str) -> Texts {
    Texts {
        main: Some(text.to_owned()),
        ..Texts::default()
    }
}

fn installed() -> Goal {
    Goal::Installed(Registration::Path("/opt/it's \"here\"/shim".into()))
}

/// The effective configuration: the values of all files, merged.
fn says(_: &Found, texts: &Texts) -> anyhow::Result<Effective> {
    let parse = |text: &Option<String>| text.clone().unwrap_or_default().parse::<Table>();
    let both = parse(&texts.main).and_then(|main| Ok((main, parse(&texts.part)?)));
    let (mut main, part) = both.map_err(|error| anyhow!("{}", error.message()))?;
    merge(&mut main, part);
    Ok(Effective::of(main))
}

fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(into)), Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

fn plan(texts: &Texts, goal: &Goal) -> Result<Texts, String> {
    let planned = found(texts).plan(goal, &mut says);
    let planned = planned.map_err(|error| error.to_string())?;
    assert_eq!(planned.texts, planned.tried);
    Ok(planned.texts)
}

/// Random configurations: some parts in any order, with one of the two line endings. The last line
/// may lack its line ending.
fn configuration() -> impl Strategy<Value = String> {
    let others = subsequence(&OTHERS[..], 0..=OTHERS.len()).prop_shuffle();
    let ends = (any::<bool>(), any::<bool>());
    (
        others,
        0..RUNTIMES.len(),
        any::<prop::sample::Index>(),
        ends,
        any::<bool>(),
    )
        .prop_map(
            |(mut parts, runtimes, at, (is_crlf, is_finished), imports)| {
                parts.insert(at.index(parts.len() + 1), RUNTIMES[runtimes]);
                let imports = if imports {
                    "imports = ['conf.d/*.toml'] # all\n"
                } else {
                    ""
                };
                let text = format!("version = 3 # the layout\n{imports}{}", parts.concat());
                let text = if is_crlf {
                    text.replace('\n', "\r\n")
                } else {
                    text
                };
                match is_finished {
                    true => text,
                    false => text.trim_end().to_owned(),
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_installation_and_its_removal_restore_every_byte(text in configuration()) {
        let before = main_only(&text);
        let with = match plan(&before, &installed()) {
            // If the text has an inline table, other lines cannot add keys to that table.
            Err(error) => {
                prop_assert!(error.contains("is an inline table"), "{}", error);
                return Ok(());
            }
            Ok(with) => with,
        };
        // The new text begins with the old one, and adds no value but the runtime.
        let main = with.main.clone().unwrap();
        prop_assert!(main.starts_with(&text));
        let (old, new) = (says(&found(&before), &before).unwrap(), says(&found(&with), &with).unwrap());
        let mut old_table = old.table().clone();
        let mut new_table = new.without(NAME);
        old_table.remove("imports");
        prop_assert_eq!(&old_table, &new_table);
        new_table = new.table().clone();
        prop_assert!(new_table != old_table);
        // A second installation changes nothing, and a removal restores the text.
        prop_assert_eq!(&plan(&with, &installed()).unwrap(), &with);
        prop_assert_eq!(&plan(&with, &Goal::Removed).unwrap(), &before);
        prop_assert_eq!(&plan(&before, &Goal::Removed).unwrap(), &before);
    }

    #[test]
    fn an_arbitrary_text_is_refused_or_restored(lines in vec("[ -~\n]{0,20}", 0..6)) {
        let before = main_only(&lines.concat());
        if let Ok(with) = plan(&before, &installed()) {
            prop_assert_eq!(&plan(&with, &Goal::Removed).unwrap(), &before);
        }
    }
}

#[test]
fn a_configuration_that_imports_a_directory_stays_unchanged() {
    let text = format!("version = 3\nimports = ['/x/*.toml']\n{}", RUNTIMES[0]);
    let with = plan(&main_only(&text), &installed()).unwrap();
    assert_eq!(with.main.as_deref(), Some(&*text));
    let part: Table = with.part.unwrap().parse().unwrap();
    let usher = &part["plugins"][CRI]["containerd"]["runtimes"][NAME];
    assert_eq!(usher["runtime_type"].as_str(), Some(RUNC_TYPE));
    assert_eq!(
        usher["runtime_path"].as_str(),
        Some("/opt/it's \"here\"/shim")
    );
    assert_eq!(part["version"].as_integer(), Some(3));
}

#[test]
fn a_pauseless_runtime_has_the_keys_that_containerd_supports() {
    let text = format!("version = 3\n{}", RUNTIMES[0]);
    let pauseless =
        |has_no_image_key| Goal::Installed(Registration::Pauseless { has_no_image_key });
    for (goal, sandboxer, no_image) in [
        (installed(), None, None),
        (pauseless(false), Some("shim"), None),
        (pauseless(true), Some("shim"), Some(true)),
    ] {
        let with = plan(&main_only(&text), &goal).unwrap();
        let both = says(
            &Found::new("/x".into(), with.main.clone(), || Ok(3)).unwrap(),
            &with,
        );
        let both = both.unwrap();
        let (_, usher) = both.runtimes().find(|(name, _)| *name == NAME).unwrap();
        assert_eq!(
            usher.get("sandboxer").and_then(toml::Value::as_str),
            sandboxer
        );
        let said = usher.get("disable_pause_image_pull");
        assert_eq!(said.and_then(toml::Value::as_bool), no_image);
    }
}

#[test]
fn lines_of_an_earlier_installer_stay_while_their_values_are_the_same() {
    let by_its_own_name = Goal::Installed(Registration::OwnType);
    let with = plan(&main_only(RUNTIMES[0]), &by_its_own_name);
    let text = format!("version = 3\n{}", RUNTIMES[0]);
    assert!(
        with.is_err(),
        "layout 1 has another name for the plugin: {with:?}"
    );
    let with = plan(&main_only(&text), &by_its_own_name)
        .unwrap()
        .main
        .unwrap();
    let earlier = with.replace(
        "written by `usher install`",
        "written by its scripts/install",
    );
    assert_ne!(earlier, with);
    let earlier = main_only(&earlier);
    assert_eq!(plan(&earlier, &by_its_own_name).unwrap(), earlier);
    // The installer replaces its lines if they have other values than planned.
    let otherwise = plan(&earlier, &installed()).unwrap();
    assert_ne!(otherwise, earlier);
    assert_eq!(plan(&otherwise, &Goal::Removed).unwrap(), main_only(&text));
}

#[test]
fn another_authors_runtime_is_refused_with_its_place() {
    let theirs = format!(
        "version = 3\n{}\n[plugins.'{CRI}'.containerd.runtimes.usher]\nruntime_type = 'y'\n",
        RUNTIMES[0]
    );
    let error = plan(&main_only(&theirs), &installed()).unwrap_err();
    assert!(
        error.starts_with("/etc/containerd/config.toml, line 5, already has a runtime usher"),
        "{error}"
    );
    // A file that the configuration imports already has a runtime named usher.
    let imported = (PathBuf::from("/x/theirs.toml"), theirs.clone());
    let text = format!("version = 3\nimports = ['/x/*.toml']\n{}", RUNTIMES[0]);
    let mut found = found(&main_only(&text));
    found.imported.push(imported);
    let mut with_theirs = |_: &Found, _: &Texts| Ok(Effective::parse(theirs.clone())?);
    let error = found.plan(&installed(), &mut with_theirs).unwrap_err();
    let error = error.to_string();
    assert!(
        error.starts_with("/x/theirs.toml, line 5, already has a runtime usher"),
        "{error}"
    );
    let cut = format!("{}# >>> usher: cut\n[x]\n", RUNTIMES[0]);
    let found = Found::new("/c.toml".into(), Some(cut), || Ok(3));
    let error = found.err().unwrap().to_string();
    assert!(
        error.starts_with("/c.toml, line 3: the lines written by `usher install` begin here"),
        "{error}"
    );
    let part = Texts {
        main: Some("version = 3\nimports = ['/x/*.toml']\n".to_owned()),
        part: Some("version = 3\n".to_owned()),
        ..Texts::default()
    };
    let found = Found::new("/c.toml".into(), part.main, || Ok(3)).unwrap();
    let error = found.with_part(part.part).err().unwrap().to_string();
    assert!(error.starts_with("/x/usher.toml exists, but"), "{error}");
}

/// Installs into the configuration `old`. Then the administrator changes the configuration to
/// `new`, and the installer's own file is a leftover.
fn with_leftover(old: &str, new: &str, file: &str) -> (Found, Texts) {
    let with = plan(&main_only(old), &installed()).unwrap();
    let found = found(&main_only(new));
    assert_eq!(found.earlier_part_files(), [PathBuf::from(file)]);
    (
        found.with_leftover(file.into(), with.part.clone(), None),
        with,
    )
}

/// The effective configuration, including the installer's files that are left from an earlier
/// installation.
fn says_with_leftovers(found: &Found, texts: &Texts) -> anyhow::Result<Effective> {
    let mut both = says(found, texts)?.table().clone();
    for text in texts.leftovers.values().flatten() {
        merge(&mut both, text.parse()?);
    }
    Ok(Effective::of(both))
}

#[test]
fn lines_in_an_import_directory_that_is_no_longer_the_first_are_moved_and_removed() {
    let with_imports = |imports| format!("version = 3\nimports = [{imports}]\n{}", RUNTIMES[0]);
    let (old, new) = ("'/x/*.toml'", "'/y/*.toml', '/x/*.toml'");
    let file = "/x/usher.toml";
    let (found, with) = with_leftover(&with_imports(old), &with_imports(new), file);
    assert!(found.has_ours());
    assert_eq!(found.shim(), Some("/opt/it's \"here\"/shim".into()));
    for goal in [installed(), Goal::Removed] {
        let planned = found.plan(&goal, &mut says_with_leftovers).unwrap();
        let changes: Vec<_> = found.changes(&found.texts, &planned.texts).collect();
        let old = with.part.as_deref();
        let removed = (Path::new(file), old, None);
        match goal {
            Goal::Removed => assert_eq!(changes, [removed]),
            Goal::Installed(_) => {
                assert_eq!(changes, [(Path::new("/y/usher.toml"), None, old), removed]);
            }
        }
    }
}

#[test]
fn a_template_of_an_earlier_installation_is_cleaned_when_the_configuration_imports_a_directory() {
    let template = "{{ template \"base\" . }}\n[debug]\n";
    let main = format!("version = 3\nimports = ['/x/*.toml']\n{}", RUNTIMES[0]);
    let with = plan(
        &main_only(&format!("version = 3\n{}", RUNTIMES[0])),
        &installed(),
    )
    .unwrap();
    let generated = with
        .main
        .unwrap()
        .replace("version = 3\n", "version = 3\nimports = ['/x/*.toml']\n");
    let text = Some(format!("{template}# >>> usher: x\n[a]\n# <<< usher\n"));
    let found = found(&main_only(&generated)).with_leftover(
        "/t.tmpl".into(),
        text,
        Some(template.to_owned()),
    );
    let removed = found.plan(&Goal::Removed, &mut says).unwrap().texts;
    assert_eq!(removed.main.as_deref(), Some(&*main));
    let left: Vec<_> = removed.leftovers.values().flatten().collect();
    assert_eq!(left, [template]);
}

#[test]
fn a_removal_refuses_a_runtime_of_another_author() {
    let theirs = format!(
        "version = 3\n{}\n[plugins.'{CRI}'.containerd.runtimes.usher]\nruntime_type = 'y'\n",
        RUNTIMES[0]
    );
    let error = plan(&main_only(&theirs), &Goal::Removed).unwrap_err();
    assert!(
        error.contains("line 5, already has a runtime usher"),
        "{error}"
    );
}

#[test]
fn the_shim_of_a_runtime_is_read_from_the_lines_in_a_template() {
    let with = plan(
        &main_only(&format!("version = 3\n{}", RUNTIMES[0])),
        &installed(),
    )
    .unwrap();
    let tables = super::ours::tables(&with.main.unwrap());
    let text = format!("{{{{ template \"base\" . }}}}\n# >>> usher: x\n{tables}\n# <<< usher\n");
    let found = found(&main_only("version = 3\n")).with_leftover("/t".into(), Some(text), None);
    assert_eq!(found.shim(), Some("/opt/it's \"here\"/shim".into()));
}

#[test]
fn an_inline_table_that_cannot_be_extended_is_named() {
    let text = format!("version = 3\n{}{IN_BRACES}", OTHERS[0]);
    let error = plan(&main_only(&text), &installed()).unwrap_err();
    let expected = format!(
        "/etc/containerd/config.toml, line 5: plugins.\"{CRI}\".containerd is an inline table"
    );
    assert!(error.starts_with(&expected), "{error}");
    // The installer writes its lines to a file of its own, so the inline table can stay.
    let text = format!("version = 3\nimports = ['/x/*.toml']\n{IN_BRACES}");
    assert!(
        plan(&main_only(&text), &installed())
            .unwrap()
            .part
            .is_some()
    );
}

#[test]
fn a_plan_that_would_change_another_value_is_refused_with_that_value() {
    let mut calls = 0;
    let mut forgets = |found: &Found, texts: &Texts| {
        calls += 1;
        let mut table = says(found, texts)?.table().clone();
        if calls > 1 {
            table.remove("debug");
        }
        Ok(Effective::of(table))
    };
    let text = format!("version = 3\n{}{}", RUNTIMES[0], OTHERS[1]);
    let found = found(&main_only(&text));
    let error = found.plan(&installed(), &mut forgets).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("debug would be missing"), "{error}");
}

#[test]
fn a_file_that_the_installer_made_is_removed_unless_it_has_other_lines() {
    let nothing = Texts::default();
    let mut knows_runc = |found: &Found, texts: &Texts| {
        let mut table = says(found, texts)?.table().clone();
        merge(&mut table, RUNTIMES[0].parse().unwrap());
        Ok(Effective::of(table))
    };
    let with = found(&nothing).plan(&installed(), &mut knows_runc);
    let with = with.unwrap().texts;
    let main = with.main.clone().unwrap();
    assert!(main.contains("version = 3\n"), "{main}");
    let removed = |texts: &Texts| plan(texts, &Goal::Removed).unwrap();
    assert_eq!(removed(&with), nothing);
    let more = main_only(&format!("{main}[debug]\n"));
    assert_eq!(removed(&more), main_only("version = 3\n[debug]\n"));
}

#[test]
fn a_generated_configuration_is_tried_and_only_its_source_is_changed() {
    let main = main_only(&format!("version = 3\n{}", RUNTIMES[0]));
    let with_source = |texts: &Texts, form| {
        let file = "/etc/source".into();
        let source = SourceText::new(Source { file, form }, texts.source.clone());
        found(texts).with_source(source.unwrap())
    };
    for form in [SourceForm::Template, SourceForm::OwnFile] {
        let new = with_source(&main, form);
        assert!(!new.awaits_generation());
        let planned = new.plan(&installed(), &mut says).unwrap();
        assert_eq!(planned.texts.main, main.main);
        assert!(planned.tried.main.unwrap().contains("runtimes.usher]"));
        let written = with_source(&planned.texts, form);
        assert!(
            written.awaits_generation(),
            "it has not been generated since"
        );
        // The distribution may leave out the comments around the installer's lines when it
        // generates the configuration.
        let mut made = planned.texts.clone();
        made.main = made
            .main
            .map(|main| main + RUNTIMES[0].replace("runc", NAME).as_str());
        let made_of = with_source(&made, form);
        assert!(!made_of.awaits_generation());
        assert_eq!(made_of.plan(&installed(), &mut says).unwrap().texts, made);
        // The installer's lines about the built-in runtime stay. Without them containerd 1 would
        // drop that runtime.
        let built_in = "\n[plugins.x.containerd.runtimes.runc]\n  a = 1\n# <<< usher";
        if form == SourceForm::Template {
            let text = made.source.take().unwrap();
            made.source = Some(text.replace("\n# <<< usher", built_in));
            let made_of = with_source(&made, form);
            assert_eq!(made_of.plan(&installed(), &mut says).unwrap().texts, made);
        }
        let removed = written.plan(&Goal::Removed, &mut says).unwrap();
        assert_eq!(removed.texts, main);
    }
}
