use std::fs;

use serde_json::json;

use super::cluster::{CONFIGURATIONS, Cluster, HOST, SECRET};
use super::{days, now};
use crate::certificate::{CurrentCertificate, Files, Pair};

#[test]
fn a_certificate_is_valid_for_its_name_and_time() {
    let pair = Pair::make(HOST, now()).unwrap();
    assert!(pair.is_valid(HOST, now()));
    assert!(pair.is_valid(HOST, now() + days(89)));
    assert!(!pair.is_valid(HOST, now() + days(91)));
    assert!(!pair.is_valid(HOST, now() - days(1)));
    assert!(!pair.is_valid("usher-webhook.other.svc", now()));
    let other = Pair::make(HOST, now()).unwrap();
    let mixed = |change: fn(&mut Pair, Pair)| {
        let mut pair = pair.clone();
        change(&mut pair, other.clone());
        pair.is_valid(HOST, now())
    };
    assert!(!mixed(|pair, other| pair.key = other.key));
    assert!(!mixed(|pair, other| pair.authorities = other.authorities));
    assert!(!mixed(|pair, _| pair.authorities = b"nonsense".to_vec()));
    assert!(!mixed(|pair, _| pair.certificate.clear()));
}

#[tokio::test]
async fn replicas_that_start_together_agree_on_a_certificate() {
    let cluster = Cluster::new();
    let served = [(); 3].map(|()| CurrentCertificate::default());
    let mut managers = served.each_ref().map(|it| cluster.manager(it.clone()));
    let now = now();
    let [one, two, three] = &mut managers;
    let (one, two, three) =
        tokio::join!(one.reconcile(now), two.reconcile(now), three.reconcile(now));
    for switched in [one, two, three] {
        assert!(switched.unwrap());
    }
    assert!(served.iter().all(CurrentCertificate::has_certificate));
    assert_eq!(cluster.version(SECRET), 2, "one replica wrote it");
    for path in CONFIGURATIONS {
        assert_eq!(cluster.get(path)["webhooks"][1]["future"], "is kept");
        assert_eq!(cluster.version(path), 2, "one replica wrote it");
    }
    // When the replicas check again, they change nothing.
    for manager in &mut managers {
        assert!(!manager.reconcile(now).await.unwrap());
    }
    assert_eq!(cluster.version(SECRET), 2);
}

#[tokio::test]
async fn a_renewed_certificate_is_used_after_its_authority_is_published() {
    let cluster = Cluster::new();
    let begin = now();
    let mut manager = cluster.manager(CurrentCertificate::default());
    assert!(manager.reconcile(begin).await.unwrap());
    let first = cluster.authorities(CONFIGURATIONS[0]);
    assert!(!manager.reconcile(begin + days(59)).await.unwrap());
    assert_eq!(cluster.version(SECRET), 2);

    let due = begin + days(61);
    assert!(!manager.reconcile(due).await.unwrap(), "not yet");
    assert_eq!(cluster.version(SECRET), 3);
    for path in CONFIGURATIONS {
        let authorities = cluster.authorities(path);
        assert!(
            authorities.ends_with(&first),
            "the old authority is still trusted"
        );
        assert!(authorities.len() > first.len());
    }
    assert!(manager.reconcile(due).await.unwrap());
    assert!(!manager.reconcile(due).await.unwrap());

    // Only one previous authority is kept.
    let length = cluster.authorities(CONFIGURATIONS[0]).len();
    manager.reconcile(due + days(61)).await.unwrap();
    let longer = cluster.authorities(CONFIGURATIONS[0]).len() > length + first.len() / 2;
    assert!(!longer);
}

#[tokio::test]
async fn an_expired_certificate_is_replaced_at_once() {
    let cluster = Cluster::new();
    let mut manager = cluster.manager(CurrentCertificate::default());
    assert!(manager.reconcile(now()).await.unwrap());
    assert!(manager.reconcile(now() + days(100)).await.unwrap());
}

#[tokio::test]
async fn a_malformed_certificate_in_the_secret_is_replaced() {
    let cluster = Cluster::new();
    let mut secret = cluster.get(SECRET);
    secret["data"] =
        json!({ "tls.crt": "bm9uc2Vuc2U=", "tls.key": "", "ca.crt": "", "mine": "eA==" });
    cluster.put(SECRET, secret);
    let served = CurrentCertificate::default();
    assert!(
        cluster
            .manager(served.clone())
            .reconcile(now())
            .await
            .unwrap()
    );
    assert!(served.has_certificate());
    assert_eq!(cluster.get(SECRET)["data"]["mine"], "eA==");
}

#[tokio::test]
async fn the_current_certificate_stays_trusted_when_the_secret_is_emptied() {
    let cluster = Cluster::new();
    let mut manager = cluster.manager(CurrentCertificate::default());
    manager.reconcile(now()).await.unwrap();
    let first = cluster.authorities(CONFIGURATIONS[0]);
    let mut secret = cluster.get(SECRET);
    secret["data"] = json!({});
    cluster.put(SECRET, secret);
    assert!(!manager.reconcile(now()).await.unwrap(), "not yet");
    assert!(cluster.authorities(CONFIGURATIONS[0]).ends_with(&first));
    assert!(manager.reconcile(now()).await.unwrap());
}

#[tokio::test]
async fn a_removed_authority_is_restored() {
    let cluster = Cluster::new();
    let mut manager = cluster.manager(CurrentCertificate::default());
    manager.reconcile(now()).await.unwrap();
    let authorities = cluster.authorities(CONFIGURATIONS[1]);
    let applied_anew = Cluster::new().get(CONFIGURATIONS[1]);
    cluster.put(CONFIGURATIONS[1], applied_anew);
    assert!(!manager.reconcile(now()).await.unwrap());
    assert_eq!(cluster.authorities(CONFIGURATIONS[1]), authorities);
}

#[tokio::test]
async fn an_error_names_the_missing_object() {
    for (path, name) in [
        (SECRET, "Secret usher-webhook"),
        (
            CONFIGURATIONS[0],
            "MutatingWebhookConfiguration usher-webhook",
        ),
        (
            CONFIGURATIONS[1],
            "ValidatingWebhookConfiguration usher-webhook",
        ),
    ] {
        let cluster = Cluster::new();
        cluster.remove(path);
        let served = CurrentCertificate::default();
        let missing = cluster.manager(served.clone()).reconcile(now()).await;
        assert_eq!(
            missing.unwrap_err().to_string(),
            format!("cannot get {name}: it is not found")
        );
        assert!(!served.has_certificate());
    }
}

#[test]
fn files_are_read_again_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let served = CurrentCertificate::default();
    let mut files = Files::new(directory.path().to_owned(), served.clone());
    let missing = files.reload().unwrap_err().to_string();
    assert!(missing.contains("tls.crt"), "{missing}");
    let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
    let pair = Pair::make(HOST, now()).unwrap();
    write("tls.crt", &pair.certificate);
    write("tls.key", &pair.key);
    assert!(files.reload().unwrap());
    assert!(!files.reload().unwrap());
    assert!(served.has_certificate());

    // The certificate and the key do not match, as happens while the files are replaced.
    let other = Pair::make(HOST, now()).unwrap();
    write("tls.crt", &other.certificate);
    assert!(files.reload().is_err());
    assert!(served.has_certificate());
    write("tls.key", &other.key);
    assert!(files.reload().unwrap());
}
