use std::fs;

use serde_json::json;

use super::cluster::{CONFIGURATIONS, Cluster, HOST, SECRET};
use super::{days, now};
use crate::certificate::{Files, Pair, Served};

#[test]
fn a_certificate_is_good_for_its_name_in_its_time() {
    let pair = Pair::make(HOST, now()).unwrap();
    assert!(pair.is_good(HOST, now()));
    assert!(pair.is_good(HOST, now() + days(89)));
    assert!(!pair.is_good(HOST, now() + days(91)));
    assert!(!pair.is_good(HOST, now() - days(1)));
    assert!(!pair.is_good("usher-webhook.other.svc", now()));
    let other = Pair::make(HOST, now()).unwrap();
    let mixed = |change: fn(&mut Pair, Pair)| {
        let mut pair = pair.clone();
        change(&mut pair, other.clone());
        pair.is_good(HOST, now())
    };
    assert!(!mixed(|pair, other| pair.key = other.key));
    assert!(!mixed(|pair, other| pair.authorities = other.authorities));
    assert!(!mixed(|pair, _| pair.authorities = b"nonsense".to_vec()));
    assert!(!mixed(|pair, _| pair.certificate.clear()));
}

#[tokio::test]
async fn replicas_that_start_together_agree() {
    let cluster = Cluster::new();
    let served = [(); 3].map(|()| Served::default());
    let mut keepers = served.each_ref().map(|it| cluster.keeper(it.clone()));
    let now = now();
    let [one, two, three] = &mut keepers;
    let (one, two, three) = tokio::join!(one.tend(now), two.tend(now), three.tend(now));
    assert_eq!([one, two, three], [Ok(true), Ok(true), Ok(true)]);
    assert!(served.iter().all(Served::is_there));
    assert_eq!(cluster.version(SECRET), 2, "one of them made it");
    for path in CONFIGURATIONS {
        assert_eq!(cluster.get(path)["webhooks"][1]["future"], "is kept");
        assert_eq!(cluster.version(path), 2, "one of them told it");
    }
    // And then they rest.
    for keeper in &mut keepers {
        assert_eq!(keeper.tend(now).await, Ok(false));
    }
    assert_eq!(cluster.version(SECRET), 2);
}

#[tokio::test]
async fn a_certificate_is_renewed_in_time_and_used_when_everybody_knows_of_it() {
    let cluster = Cluster::new();
    let begin = now();
    let mut keeper = cluster.keeper(Served::default());
    assert_eq!(keeper.tend(begin).await, Ok(true));
    let first = cluster.authorities(CONFIGURATIONS[0]);
    assert_eq!(keeper.tend(begin + days(59)).await, Ok(false));
    assert_eq!(cluster.version(SECRET), 2);

    let due = begin + days(61);
    assert_eq!(keeper.tend(due).await, Ok(false), "not yet");
    assert_eq!(cluster.version(SECRET), 3);
    for path in CONFIGURATIONS {
        let authorities = cluster.authorities(path);
        assert!(
            authorities.ends_with(&first),
            "who serves the old one is believed"
        );
        assert!(authorities.len() > first.len());
    }
    assert_eq!(keeper.tend(due).await, Ok(true));
    assert_eq!(keeper.tend(due).await, Ok(false));

    // Of those before it one is enough.
    let length = cluster.authorities(CONFIGURATIONS[0]).len();
    keeper.tend(due + days(61)).await.unwrap();
    let longer = cluster.authorities(CONFIGURATIONS[0]).len() > length + first.len() / 2;
    assert!(!longer);
}

#[tokio::test]
async fn one_that_is_not_good_any_more_is_replaced_at_once() {
    let cluster = Cluster::new();
    let mut keeper = cluster.keeper(Served::default());
    assert_eq!(keeper.tend(now()).await, Ok(true));
    assert_eq!(keeper.tend(now() + days(100)).await, Ok(true));
}

#[tokio::test]
async fn nonsense_in_the_secret_is_replaced() {
    let cluster = Cluster::new();
    let mut secret = cluster.get(SECRET);
    secret["data"] =
        json!({ "tls.crt": "bm9uc2Vuc2U=", "tls.key": "", "ca.crt": "", "mine": "eA==" });
    cluster.put(SECRET, secret);
    let served = Served::default();
    assert_eq!(cluster.keeper(served.clone()).tend(now()).await, Ok(true));
    assert!(served.is_there());
    assert_eq!(cluster.get(SECRET)["data"]["mine"], "eA==");
}

#[tokio::test]
async fn what_is_served_is_believed_on_when_somebody_empties_the_secret() {
    let cluster = Cluster::new();
    let mut keeper = cluster.keeper(Served::default());
    keeper.tend(now()).await.unwrap();
    let first = cluster.authorities(CONFIGURATIONS[0]);
    let mut secret = cluster.get(SECRET);
    secret["data"] = json!({});
    cluster.put(SECRET, secret);
    assert_eq!(keeper.tend(now()).await, Ok(false), "not yet");
    assert!(cluster.authorities(CONFIGURATIONS[0]).ends_with(&first));
    assert_eq!(keeper.tend(now()).await, Ok(true));
}

#[tokio::test]
async fn an_authority_that_somebody_takes_away_comes_back() {
    let cluster = Cluster::new();
    let mut keeper = cluster.keeper(Served::default());
    keeper.tend(now()).await.unwrap();
    let authorities = cluster.authorities(CONFIGURATIONS[1]);
    let applied_anew = Cluster::new().get(CONFIGURATIONS[1]);
    cluster.put(CONFIGURATIONS[1], applied_anew);
    assert_eq!(keeper.tend(now()).await, Ok(false));
    assert_eq!(cluster.authorities(CONFIGURATIONS[1]), authorities);
}

#[tokio::test]
async fn what_is_missing_is_named() {
    for (path, name) in [
        (SECRET, "Secret usher-webhook: "),
        (
            CONFIGURATIONS[0],
            "MutatingWebhookConfiguration usher-webhook: ",
        ),
        (
            CONFIGURATIONS[1],
            "ValidatingWebhookConfiguration usher-webhook: ",
        ),
    ] {
        let cluster = Cluster::new();
        cluster.remove(path);
        let served = Served::default();
        let missing = cluster.keeper(served.clone()).tend(now()).await;
        assert_eq!(missing, Err(format!("{name}it is not found")));
        assert!(!served.is_there());
    }
}

#[test]
fn files_are_read_again_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let served = Served::default();
    let mut files = Files::new(directory.path().to_owned(), served.clone());
    let missing = files.look().unwrap_err();
    assert!(missing.contains("tls.crt"), "{missing}");
    let write = |name: &str, bytes: &[u8]| fs::write(directory.path().join(name), bytes).unwrap();
    let pair = Pair::make(HOST, now()).unwrap();
    write("tls.crt", &pair.certificate);
    write("tls.key", &pair.key);
    assert_eq!(files.look(), Ok(true));
    assert_eq!(files.look(), Ok(false));
    assert!(served.is_there());

    // A certificate and the key of another: somebody is at work.
    let other = Pair::make(HOST, now()).unwrap();
    write("tls.crt", &other.certificate);
    assert!(files.look().is_err());
    assert!(served.is_there());
    write("tls.key", &other.key);
    assert_eq!(files.look(), Ok(true));
}
