//! From a review to its answer.
//!
//! Nothing is decided about pods here: [`usher_core::judgement`] says what is to be written, refused and
//! warned of, to the shim, to `usher explain` and to us. Here an object's pod is found, and what is said
//! of it is put into the form that an API server takes. Pure; nothing here fails for what a review says.

mod author;
mod patch;
mod review;
mod subject;

use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, Operation};
use usher_core::judgement::{self, Judgement, Warning};
use usher_core::manifest::Pod;
use usher_core::plan::Rules;

use patch::Patch;
pub use review::Malformed;
use subject::Subject;

/// What kubelet shows of a static pod has it: that pod is on its node already, and nothing changes it.
const MIRROR: &str = "kubernetes.io/config.mirror";

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

// === impl Admission ===

impl Admission {
    /// Answers a review.
    ///
    /// # Errors
    ///
    /// If it is none; then there is nobody to answer in the form of one.
    pub fn answer(&self, webhook: Webhook, body: &[u8]) -> Result<Answer, Malformed> {
        let mut request = review::read(body)?;
        let verdict = self.judge(webhook, &mut request);
        review::write(&request, verdict)
    }

    fn judge(&self, webhook: Webhook, request: &mut AdmissionRequest<DynamicObject>) -> Verdict {
        let is_new = request.operation == Operation::Create;
        let is_change = request.operation == Operation::Update;
        if !(is_new || is_change)
            || request
                .sub_resource
                .as_ref()
                .is_some_and(|it| !it.is_empty())
        {
            return Verdict::default();
        }
        let kind = request.kind.kind.clone();
        let namespace = request.namespace.clone();
        let subject = |object: Option<DynamicObject>| {
            object.and_then(|object| Subject::of(&kind, namespace.clone(), object))
        };
        let Some(new) = subject(request.object.take()) else {
            return Verdict::default();
        };
        match webhook {
            // What has been created has its spec.
            Webhook::Mutate if is_new => self.mutate(&new, false),
            Webhook::MutateNamespace if is_new => self.mutate(&new, true),
            Webhook::Mutate | Webhook::MutateNamespace => Verdict::default(),
            Webhook::Validate => match subject(request.old_object.take()) {
                Some(old) if is_change => self.validate_change(&old, &new),
                _ => self.validate(&new),
            },
        }
    }

    fn mutate(&self, subject: &Subject, everywhere: bool) -> Verdict {
        // Templates are the author's; what is made of them comes by itself.
        if !subject.is_pod() {
            return Verdict::default();
        }
        // The API server says what is wrong with it, and says it better.
        let Ok(mut pod) = subject.read() else {
            return Verdict::default();
        };
        if pod.annotations.contains_key(MIRROR) {
            return Verdict::default();
        }
        let mut patch = Patch::default();
        let before = std::mem::take(&mut pod.annotations);
        pod.annotations = author::restore(&before);
        let is_concerned = judgement::concerns(&pod, &self.rules);
        if (is_concerned || everywhere) && pod.spec.runtime_class_name.is_none() {
            patch.set_runtime_class(&self.runtime_class);
            pod.spec.runtime_class_name = Some(self.runtime_class.clone());
        }
        let mut verdict = match is_concerned {
            true => self.complete(&mut pod, |name| patch.take_probe_out(subject, name)),
            false => Verdict::default(),
        };
        patch.annotate(subject, &before, &pod.annotations);
        verdict.patch = patch;
        verdict
    }

    /// Completes the pod, of which its author's annotations are known, and judges it.
    fn complete(&self, pod: &mut Pod, mut take_probe_out: impl FnMut(&str)) -> Verdict {
        let mut warnings = Vec::new();
        match judgement::complete(pod, &self.rules) {
            Ok(None) => {}
            Ok(Some(completion)) => {
                let of_author = pod.annotations.clone();
                completion.apply(pod);
                author::remember(&of_author, &mut pod.annotations, &completion);
                let moved = &completion.without_liveness_probe;
                moved.iter().for_each(|name| take_probe_out(name));
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

    fn validate(&self, subject: &Subject) -> Verdict {
        let Ok(mut pod) = subject.read() else {
            return Verdict::default();
        };
        if !judgement::concerns(&pod, &self.rules) {
            return Verdict::default();
        }
        // Of a pod whoever created it has been warned before.
        if subject.is_pod() {
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
    fn validate_change(&self, old: &Subject, new: &Subject) -> Verdict {
        if old.says_the_same(new) {
            return Verdict::default();
        }
        let (before, mut verdict) = (self.validate(old), self.validate(new));
        if before.refused == verdict.refused {
            verdict.refused = None;
        }
        verdict.warnings.retain(|it| !before.warnings.contains(it));
        verdict
    }
}
