//! Turns a review into its response.
//!
//! [`usher_core::judgement`] decides what to write, what to refuse and what to warn of, as it does
//! for `usher explain`. This module finds the pod in an object, and puts the decision into the form
//! that the API server expects. It is pure, and no content of a review makes it panic.

mod author;
mod patch;
mod review;
mod subject;

use std::collections::BTreeSet;

use usher_core::judgement::{self, Judgement, Warning};
use usher_core::manifest::{Pod, TooLarge};
use usher_core::plan::Rules;

use patch::Patch;
pub use review::Malformed;
use review::Request;
use subject::Subject;

/// Annotation of a mirror pod, with which kubelet shows a static pod to the API server. The static
/// pod already runs on its node, so changing the mirror has no effect.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// Number of containers up to which judging a pod is certainly cheap.
const USUAL_CONTAINERS: usize = 64;

/// The webhooks of this program; each has its own path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Webhook {
    /// Adds missing annotations and a missing RuntimeClass to pods with usher annotations.
    Mutate,
    /// Does the same as `Mutate`, and sets the RuntimeClass of all other pods. Meant for namespaces
    /// whose pods all run under usher.
    MutateNamespace,
    /// Refuses pods and pod templates that the shim would refuse.
    Validate,
}

/// The outcome of a review.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Unchanged,
    Changed,
    Refused,
}

/// The answer to a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    pub outcome: Outcome,
    /// An AdmissionReview, in JSON.
    pub body: Vec<u8>,
}

/// The settings by which pods are judged.
#[derive(Debug, Clone)]
pub struct Admission {
    pub rules: Rules,
    /// The RuntimeClass that selects usher.
    pub runtime_class: String,
}

/// A review that was parsed.
#[derive(Debug)]
pub struct ParsedReview {
    uid: String,
    action: Action,
}

#[derive(Debug)]
enum Action {
    /// The review does not concern this webhook: allow it unchanged.
    Ignore,
    Refuse(TooLarge),
    Mutate {
        pod: Subject,
        everywhere: bool,
    },
    Validate {
        new: Subject,
        old: Option<Subject>,
    },
}

#[derive(Debug, Default)]
struct Verdict {
    /// Reasons to refuse the object. The response gives only the first one.
    refusals: Vec<String>,
    warnings: Vec<Warning>,
    patch: Patch,
}

impl Webhook {
    /// Returns the webhook at an HTTP path.
    pub fn at(path: &str) -> Option<Webhook> {
        match path {
            "/mutate" => Some(Webhook::Mutate),
            "/mutate/namespace" => Some(Webhook::MutateNamespace),
            "/validate" => Some(Webhook::Validate),
            _ => None,
        }
    }

    /// The name in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Webhook::Mutate => "mutate",
            Webhook::MutateNamespace => "mutate-namespace",
            Webhook::Validate => "validate",
        }
    }
}

impl Outcome {
    /// The name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Unchanged => "unchanged",
            Outcome::Changed => "changed",
            Outcome::Refused => "refused",
        }
    }
}

impl ParsedReview {
    /// True if a pod has so many containers that judging it may take some milliseconds.
    pub fn is_costly(&self) -> bool {
        let costs = |subject: &Subject| subject.pod.all().count() > USUAL_CONTAINERS;
        match &self.action {
            Action::Ignore | Action::Refuse(_) => false,
            Action::Mutate { pod, .. } => costs(pod),
            Action::Validate { new, old } => costs(new) || old.as_ref().is_some_and(costs),
        }
    }
}

/// Returns what `webhook` has to do for a request.
fn action_for(webhook: Webhook, request: &Request<'_>) -> Result<Action, TooLarge> {
    let is_new = request.operation == "CREATE";
    let is_change = request.operation == "UPDATE";
    // A mutating webhook only handles creation, because most of a pod's spec cannot change later.
    let is_handled = is_new || is_change && webhook == Webhook::Validate;
    let object = request
        .object
        .filter(|_| is_handled && request.is_about_object());
    let subject = |object| Subject::of(request.kind(), request.namespace.as_deref(), object);
    let Some(new) = object.map(subject).transpose()?.flatten() else {
        return Ok(Action::Ignore);
    };
    Ok(match webhook {
        Webhook::Mutate | Webhook::MutateNamespace => Action::Mutate {
            pod: new,
            everywhere: webhook == Webhook::MutateNamespace,
        },
        Webhook::Validate => {
            let old = request.old_object.filter(|_| is_change);
            // If the old pod is too large, the API server stored it before this limit existed. The
            // webhook then ignores the old pod.
            let old = old.and_then(|old| subject(old).ok().flatten());
            Action::Validate { new, old }
        }
    })
}

impl Admission {
    /// Answers a review.
    ///
    /// # Errors
    ///
    /// If `body` is no review, so that an AdmissionReview cannot be the answer.
    pub fn answer(&self, webhook: Webhook, body: &[u8]) -> Result<Response, Malformed> {
        self.decide(self.read(webhook, body)?)
    }

    /// Reads the parts of a review that matter to this webhook.
    ///
    /// # Errors
    ///
    /// As [`Admission::answer`].
    pub fn read(&self, webhook: Webhook, body: &[u8]) -> Result<ParsedReview, Malformed> {
        let request = review::read(body)?;
        let action = action_for(webhook, &request).unwrap_or_else(Action::Refuse);
        let uid = request.uid;
        Ok(ParsedReview { uid, action })
    }

    /// Answers a review that has been read.
    ///
    /// # Errors
    ///
    /// If the response cannot be serialized.
    pub fn decide(&self, review: ParsedReview) -> Result<Response, Malformed> {
        let verdict = match review.action {
            Action::Ignore => Verdict::default(),
            Action::Refuse(error) => Verdict {
                refusals: vec![error.to_string()],
                ..Verdict::default()
            },
            Action::Mutate { pod, everywhere } => self.mutate(pod, everywhere),
            Action::Validate { new, old: None } => self.validate(new),
            Action::Validate {
                new,
                old: Some(old),
            } => self.validate_change(old, new),
        };
        review::write(&review.uid, verdict)
    }

    fn mutate(&self, subject: Subject, everywhere: bool) -> Verdict {
        // Templates stay as the author wrote them, because each pod made from a template is
        // reviewed by itself. Pods for Windows stay, too, because usher runs only on Linux.
        let is_mirror = subject.pod.annotations.contains_key(MIRROR);
        if !subject.is_pod() || is_mirror || subject.pod.is_for_windows() {
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
            true => self.complete(&mut pod, |names| {
                patch.remove_liveness_probes(&subject, names)
            }),
            false => Verdict::default(),
        };
        patch.set_annotations(before, &pod.annotations);
        verdict.patch = patch;
        verdict
    }

    /// Completes and judges a pod. Its annotations must be those that its author wrote.
    fn complete(&self, pod: &mut Pod, remove_probes: impl FnOnce(&BTreeSet<&str>)) -> Verdict {
        let mut warnings = Vec::new();
        match judgement::complete(pod, &self.rules) {
            Ok(None) => {}
            Ok(Some(completion)) => {
                let of_author = pod.annotations.clone();
                completion.apply(pod);
                author::record(&of_author, &mut pod.annotations, &completion);
                let moved = completion.moved_probes();
                remove_probes(&moved);
                if !moved.is_empty() {
                    warnings.extend(self.of_other_class(pod));
                }
                warnings.extend(completion.notes);
            }
            Err(error) => {
                return Verdict {
                    refusals: error.sentences(),
                    ..Verdict::default()
                };
            }
        }
        let mut judgement = Judgement::of(pod, &self.rules);
        warnings.append(&mut judgement.warnings);
        Verdict {
            refusals: judgement.refusals(),
            warnings,
            patch: Patch::default(),
        }
    }

    /// The warning that the webhook moved liveness probes into annotations although the pod names
    /// another RuntimeClass. The webhook moves them nonetheless, because administrators may create
    /// further RuntimeClasses for usher.
    fn of_other_class(&self, pod: &Pod) -> Option<Warning> {
        let class = pod.spec.runtime_class_name.as_ref()?;
        (*class != self.runtime_class).then(|| {
            Warning::about_pod(format!(
                "runtimeClassName is {class}; expected {}, or another RuntimeClass with usher's \
                 handler, because only usher runs the livenessProbes that the webhook moves into \
                 annotations",
                self.runtime_class
            ))
        })
    }

    fn validate(&self, subject: Subject) -> Verdict {
        let is_pod = subject.is_pod();
        let Subject { mut pod } = subject;
        if !judgement::concerns(&pod, &self.rules) {
            return Verdict::default();
        }
        // The mutating webhook has already returned the warnings for a pod.
        if is_pod {
            return Verdict {
                refusals: Judgement::of(&pod, &self.rules).refusals(),
                ..Verdict::default()
            };
        }
        // The mutating webhook sets the RuntimeClass of the pods made from this template.
        let class = &mut pod.spec.runtime_class_name;
        class.get_or_insert_with(|| self.runtime_class.clone());
        self.complete(&mut pod, |_| ())
    }

    /// Judges the change of an object by its new problems. A refusal or warning that also applies
    /// to the old object is left out. For example, a client that only scales the object, or removes
    /// a finalizer, has not caused the problem.
    fn validate_change(&self, old: Subject, new: Subject) -> Verdict {
        if old == new {
            return Verdict::default();
        }
        let (before, mut verdict) = (self.validate(old), self.validate(new));
        let known: BTreeSet<String> = before.refusals.into_iter().collect();
        verdict.refusals.retain(|it| !known.contains(it));
        let known: BTreeSet<Warning> = before.warnings.into_iter().collect();
        verdict.warnings.retain(|it| !known.contains(it));
        verdict
    }
}
