use super::*;
use usher_core::manifest::kinds;

#[test]
fn pods_are_found_in_every_kind_of_object() {
    let spec = "{spec: {containers: [{name: a}]}}";
    for kind in kinds() {
        let path = pod_path(kind).unwrap();
        let mut document = parse(spec).unwrap().remove(0);
        for key in path.iter().rev() {
            document = Node::Map(vec![((*key).to_owned(), document)]);
        }
        document.set("kind", Node::text(kind));
        document.set(
            "metadata",
            parse("{name: x, namespace: y}").unwrap().remove(0),
        );
        let found = pods(&document);
        assert_eq!(found.len(), 1, "{kind}");
        let owner = &found[0].0;
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), (kind, "x"));
        let list = Node::Map(vec![
            ("kind".into(), Node::text("List")),
            ("items".into(), Node::List(vec![document.clone(), document])),
        ]);
        assert_eq!(pods(&list).len(), 2, "{kind}");
    }
    assert!(pods(&parse("{kind: Service, spec: {}}").unwrap()[0]).is_empty());
}

#[test]
fn items_of_a_typed_list_have_the_kind_that_the_list_implies() {
    let text = "{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}, spec: {}}]}";
    let document = &parse(text).unwrap()[0];
    let item = &document.get("items").unwrap().items()[0];
    assert_eq!(item.text_of("kind"), Some("Pod"));
    assert_eq!(item.text_of("apiVersion"), Some("v1"));
    assert_eq!(pods(document).len(), 1);
}

#[test]
fn large_manifests_are_parsed() {
    let documents = "kind: Pod\n---\n".repeat(2000);
    assert_eq!(parse(&documents).unwrap().len(), 2000);
    let aliases = format!("one: &one [1, 2, 3]\nall: [{}]\n", "*one, ".repeat(1000));
    let all = parse(&aliases).unwrap().remove(0);
    assert_eq!(all.get("all").unwrap().items().len(), 1000);
    let values = format!("all: [{}]\n", "1, ".repeat(300_000));
    let all = parse(&values).unwrap().remove(0);
    assert_eq!(all.get("all").unwrap().items().len(), 300_000);
    // A short text whose aliases stand for a billion values.
    let mut bomb = "a0: &a0 [1, 1]\n".to_owned();
    for level in 1..30 {
        let below = level - 1;
        bomb.push_str(&format!("a{level}: &a{level} [*a{below}, *a{below}]\n"));
    }
    assert!(parse(&bomb).is_err());
}

#[test]
fn scalars_have_the_types_that_kubectl_gives_them() {
    let document = &parse(
        "mode: 0644\nquoted: '0644'\nyes: yes\ntext: 'yes'\nnumber: 1.5\nnothing:\nport: 0x10\n",
    )
    .unwrap()[0];
    assert_eq!(document.get("mode"), Some(&Node::Integer(0o644)));
    assert_eq!(document.get("quoted"), Some(&Node::text("0644")));
    assert_eq!(document.get("true"), Some(&Node::Bool(true)));
    assert_eq!(document.get("text"), Some(&Node::text("yes")));
    assert_eq!(document.get("number"), Some(&Node::Float(1.5)));
    assert_eq!(document.get("nothing"), None);
    assert_eq!(document.get("port"), Some(&Node::Integer(16)));
}

#[test]
fn keys_are_the_texts_that_kubectl_makes_of_them() {
    let text = "{n: 1, yes: 2, 0x10: 3, 1.50: 4, 'no': 5, plain: 6, base: &base {a: 7}, all: {<<: *base, 'y': 8}}";
    let documents = parse(text).unwrap();
    let keys = |node: &Node| -> Vec<String> {
        let fields = node.fields().iter();
        fields.map(|(key, _)| key.clone()).collect()
    };
    let expected = ["false", "true", "16", "1.5", "no", "plain", "base", "all"];
    assert_eq!(keys(&documents[0]), expected);
    assert_eq!(keys(documents[0].get("all").unwrap()), ["y", "a"]);
    let printed = print(&documents).unwrap();
    assert_eq!(parse(&printed).unwrap(), documents, "{printed}");
}

#[test]
fn printed_documents_are_parsed_back() {
    let text = r#"
kind: ConfigMap
data:
  script: |
    #!/bin/sh
    echo "a: b" # no comment
  trailing: "x\n\n"
  long: "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
  yes: "yes"
  octal: "0644"
  time: "12:30"
  date: "2024-01-01"
  version: "1.10"
  empty: ""
  tilde: "~"
  nil: "null"
  star: "*x"
  json: '{"tcpSocket": {"port": 1}}'
numbers: [1, -1, 1.5, 18446744073709551615, true, null]
none: {}
nothing: []
---
# only a comment
---
{"kind": "Pod", "json": ["as", "well"]}
"#;
    let documents = parse(text).unwrap();
    assert_eq!(documents.len(), 2);
    let printed = print(&documents).unwrap();
    assert_eq!(parse(&printed).unwrap(), documents, "{printed}");
}

#[test]
fn invalid_yaml_is_refused_with_its_line() {
    let error = parse("a: b\n c: [\n").unwrap_err().to_string();
    assert!(error.contains("line 2"), "{error}");
    assert!(!error.contains('\n'), "{error}");
}
