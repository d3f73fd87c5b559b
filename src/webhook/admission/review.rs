//! `AdmissionReview`: reads requests and writes responses.

use k8s_openapi::ByteString;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{Outcome, Response, Verdict};

const REVIEW_KIND: &str = "AdmissionReview";
const REVIEW_API_VERSION: &str = "admission.k8s.io/v1";

/// Maximum number of warnings in a response. An API server passes on at most 4 KiB of warnings.
const MAX_WARNINGS: usize = 100;

/// The fields of a review that matter. Objects stay text until the path to their pod is known.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: String,
    kind: String,
    #[serde(borrow)]
    request: Option<Request<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    pub(super) uid: String,
    kind: Kind,
    sub_resource: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) operation: String,
    #[serde(borrow)]
    pub(super) object: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) old_object: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    kind: String,
}

impl Request<'_> {
    pub(super) fn kind(&self) -> &str {
        &self.kind.kind
    }

    /// True if the request is about the object itself and not about a subresource of it.
    pub(super) fn is_about_object(&self) -> bool {
        self.sub_resource.as_deref().unwrap_or_default().is_empty()
    }
}

/// Why a request body is no review, or cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the body cannot be read as an AdmissionReview: {0}")]
    Unreadable(String),
    #[error(
        "the request body has kind {0:?} and apiVersion {1:?}; expected kind {REVIEW_KIND:?} and \
         apiVersion {REVIEW_API_VERSION:?}"
    )]
    Other(String, String),
    #[error("the AdmissionReview has no request")]
    WithoutRequest,
    #[error("internal error: cannot write the response: {0}")]
    Unwritable(String),
}

/// HTTP status with which the API server itself refuses an invalid object.
const UNPROCESSABLE: u16 = 422;

pub(super) fn read(body: &[u8]) -> Result<Request<'_>, Malformed> {
    let unreadable = |error: &dyn std::error::Error| Malformed::Unreadable(error.to_string());
    // The whole body is checked for UTF-8 once, instead of each string by itself.
    let text = std::str::from_utf8(body).map_err(|error| unreadable(&error))?;
    let review: Review<'_> = serde_json::from_str(text).map_err(|error| unreadable(&error))?;
    if review.kind != REVIEW_KIND || review.api_version != REVIEW_API_VERSION {
        return Err(Malformed::Other(review.kind, review.api_version));
    }
    review.request.ok_or(Malformed::WithoutRequest)
}

pub(super) fn write(uid: &str, verdict: Verdict) -> Result<Response, Malformed> {
    let unwritable = |error: serde_json::Error| Malformed::Unwritable(error.to_string());
    let mut outcome = Outcome::Unchanged;
    let mut response = serde_json::Map::new();
    let mut put = |field: &str, value: Value| response.insert(field.to_owned(), value);
    put("uid", uid.into());
    put("allowed", verdict.refusals.is_empty().into());
    if let Some(sentence) = verdict.refusals.first() {
        outcome = Outcome::Refused;
        let status = json!({ "code": UNPROCESSABLE, "reason": "Invalid", "message": sentence });
        put("status", status);
    } else if let Some(patch) = verdict.patch.finish() {
        outcome = Outcome::Changed;
        let patch = ByteString(serde_json::to_vec(&patch).map_err(unwritable)?);
        put("patchType", "JSONPatch".into());
        put("patch", serde_json::to_value(patch).map_err(unwritable)?);
    }
    if !verdict.warnings.is_empty() {
        let more = verdict.warnings.len().saturating_sub(MAX_WARNINGS);
        let warnings = verdict.warnings.iter().take(MAX_WARNINGS);
        let mut warnings: Vec<String> = warnings.map(ToString::to_string).collect();
        if more > 0 {
            warnings.push(format!("and {more} more warnings"));
        }
        put("warnings", warnings.into());
    }
    let review = json!({
        "apiVersion": REVIEW_API_VERSION,
        "kind": REVIEW_KIND,
        "response": response,
    });
    let body = review.to_string().into_bytes();
    Ok(Response { outcome, body })
}
