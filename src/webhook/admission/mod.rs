//! From a review to its answer.
//!
//! Nothing is decided about pods here: [`usher_core::judgement`] says what is to be written, refused and
//! warned of, to the shim, to `usher explain` and to us. Here an object's pod is found, and what is said
//! of it is put into the form that an API server takes. Pure; nothing here fails for what a review says.

mod author;
mod patch;
mod review;
mod subject;

use std::collections::BTreeSet;

use usher_core::judgement::{self, Judgement, Warning};
use usher_core::manifest::Pod;
use usher_core::plan::Rules;

use patch::Patch;
pub use review::Malformed;
use review::Request;
use subject::Subject;

/// What kubelet shows of a static pod has it: that pod is on its node already, and nothing changes it.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Containers of a pod that is judged at once.
const USUAL_CONTAINERS: usize = 64;

/// Which of our webhooks is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Webhook {
    /// Completes pods that say something of usher.
    Mutate,
    /// The same, for namespaces whose pods all run under usher.
    MutateNamespace,
    /// Refuses pods, and templates of pods, that the shim would refuse.
    Validate,
}

/// What became of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Unchanged,
    Changed,
    Refused,
}

/// The answer to a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub outcome: Outcome,
    /// An AdmissionReview, in JSON.
    pub body: Vec<u8>,
}

/// By what pods are judged.
#[derive(Debug, Clone)]
pub struct Admission {
    pub rules: Rules,
    /// The RuntimeClass that selects usher.
    pub runtime_class: String,
}

/// A review that has been read.
#[derive(Debug)]
pub struct Case {
    uid: String,
    asked: Asked,
}

/// The request of a review.
#[derive(Debug)]
enum Asked {
    /// Nothing that matters to this webhook.
    Nothing,
    /// A pod larger than any that Kubernetes can run: the sentence says in what.
    TooMuch(String),
    Mutate {
        pod: Subject,
        everywhere: bool,
    },
    Validate {
        new: Subject,
        old: Option<Subject>,
    },
}

/// What is said to an object.
#[derive(Debug, Default)]
struct Verdict {
    refused: Option<String>,
    warnings: Vec<Warning>,
    patch: Patch,
}

// === impl Webhook ===

impl Webhook {
    /// By the path that it is asked at.
    pub fn at(path: &str) -> Option<Webhook> {
        match path {
            "/mutate" => Some(Webhook::Mutate),
            "/mutate/namespace" => Some(Webhook::MutateNamespace),
            "/validate" => Some(Webhook::Validate),
            _ => None,
        }
    }

    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Webhook::Mutate => "mutate",
            Webhook::MutateNamespace => "mutate-namespace",
            Webhook::Validate => "validate",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Unchanged => "unchanged",
            Outcome::Changed => "changed",
            Outcome::Refused => "refused",
        }
    }
}

// === impl Case ===

impl Case {
    /// True if its pods have so many containers that judging them may take some milliseconds.
    pub fn is_costly(&self) -> bool {
        let costs = |subject: &Subject| subject.pod.all().count() > USUAL_CONTAINERS;
        match &self.asked {
            Asked::Nothing | Asked::TooMuch(_) => false,
            Asked::Mutate { pod, .. } => costs(pod),
            Asked::Validate { new, old } => costs(new) || old.as_ref().is_some_and(costs),
        }
    }
}

/// The request of a review to this webhook, or a sentence if its pod is too large.
fn asked(webhook: Webhook, request: &Request<'_>) -> Result<Asked, String> {
    let is_new = request.operation == "CREATE";
    let is_change = request.operation == "UPDATE";
    // What has been created has its spec.
    let is_asked = is_new || is_change && webhook == Webhook::Validate;
    let object = request
        .object
        .filter(|_| is_asked && request.is_about_object());
    let subject = |object| Subject::of(request.kind(), request.namespace.as_deref(), object);
    let Some(new) = object.map(subject).transpose()?.flatten() else {
        return Ok(Asked::Nothing);
    };
    Ok(match webhook {
        Webhook::Mutate | Webhook::MutateNamespace => Asked::Mutate {
            pod: new,
            everywhere: webhook == Webhook::MutateNamespace,
        },
        Webhook::Validate => {
            let old = request.old_object.filter(|_| is_change);
            // One that is too large was stored before there was this limit.
            let old = old.and_then(|old| subject(old).ok().flatten());
            Asked::Validate { new, old }
        }
    })
}

// === impl Admission ===

impl Admission {
    /// Answers a review.
    ///
    /// # Errors
    ///
    /// If it is none; then there is nobody to answer in the form of one.
    pub fn answer(&self, webhook: Webhook, body: &[u8]) -> Result<Answer, Malformed> {
        self.decide(self.read(webhook, body)?)
    }

    /// Reads a review, as far as it matters to this webhook.
    ///
    /// # Errors
    ///
    /// As [`Admission::answer`].
    pub fn read(&self, webhook: Webhook, body: &[u8]) -> Result<Case, Malformed> {
        let request = review::read(body)?;
        let asked = asked(webhook, &request).unwrap_or_else(Asked::TooMuch);
        let uid = request.uid;
        Ok(Case { uid, asked })
    }

    /// Answers a review that has been read.
    ///
    /// # Errors
    ///
    /// If the answer cannot be written.
    pub fn decide(&self, case: Case) -> Result<Answer, Malformed> {
        let verdict = match case.asked {
            Asked::Nothing => Verdict::default(),
            Asked::TooMuch(sentence) => Verdict {
                refused: Some(sentence),
                ..Verdict::default()
            },
            Asked::Mutate { pod, everywhere } => self.mutate(pod, everywhere),
            Asked::Validate { new, old: None } => self.validate(new),
            Asked::Validate {
                new,
                old: Some(old),
            } => self.validate_change(old, new),
        };
        review::write(&case.uid, verdict)
    }

    fn mutate(&self, subject: Subject, everywhere: bool) -> Verdict {
        // Templates are the author's; what is made of them comes by itself.
        if !subject.is_pod() || subject.pod.annotations.contains_key(MIRROR) {
            return Verdict::default();
        }
        let mut pod = Pod::clone(&subject.pod);
        let before = &subject.pod.annotations;
        let mut patch = Patch::default();
        pod.annotations = author::restore(before);
        let is_concerned = judgement::concerns(&pod, &self.rules);
        if (is_concerned || everywhere) && pod.spec.runtime_class_name.is_none() {
            patch.set_runtime_class(&self.runtime_class);
            pod.spec.runtime_class_name = Some(self.runtime_class.clone());
        }
        let mut verdict = match is_concerned {
            true => self.complete(&mut pod, |names| patch.take_probes_out(&subject, names)),
            false => Verdict::default(),
        };
        patch.annotate(before, &pod.annotations);
        verdict.patch = patch;
        verdict
    }

    /// Completes the pod, of which its author's annotations are known, and judges it.
    fn complete(&self, pod: &mut Pod, take_probes_out: impl FnOnce(&BTreeSet<&str>)) -> Verdict {
        let mut warnings = Vec::new();
        match judgement::complete(pod, &self.rules) {
            Ok(None) => {}
            Ok(Some(completion)) => {
                let of_author = pod.annotations.clone();
                completion.apply(pod);
                author::remember(&of_author, &mut pod.annotations, &completion);
                take_probes_out(&completion.moved_probes());
                warnings.extend(completion.notes);
            }
            Err(sentence) => {
                return Verdict {
                    refused: Some(sentence),
                    ..Verdict::default()
                };
            }
        }
        let judgement = Judgement::of(pod, &self.rules);
        warnings.extend(judgement.warnings);
        Verdict {
            refused: judgement.refused,
            warnings,
            patch: Patch::default(),
        }
    }

    fn validate(&self, subject: Subject) -> Verdict {
        let is_pod = subject.is_pod();
        let Subject { mut pod } = subject;
        if !judgement::concerns(&pod, &self.rules) {
            return Verdict::default();
        }
        // Of a pod whoever created it has been warned before.
        if is_pod {
            return Verdict {
                refused: Judgement::of(&pod, &self.rules).refused,
                ..Verdict::default()
            };
        }
        // As its pods will have it.
        let class = &mut pod.spec.runtime_class_name;
        class.get_or_insert_with(|| self.runtime_class.clone());
        self.complete(&mut pod, |_| ())
    }

    /// What was said of the object before is not said again: who takes a finalizer off it, or scales it,
    /// has not written it.
    fn validate_change(&self, old: Subject, new: Subject) -> Verdict {
        if old == new {
            return Verdict::default();
        }
        let (before, mut verdict) = (self.validate(old), self.validate(new));
        if before.refused == verdict.refused {
            verdict.refused = None;
        }
        let said: BTreeSet<Warning> = before.warnings.into_iter().collect();
        verdict.warnings.retain(|it| !said.contains(it));
        verdict
    }
}
