//! `AdmissionReview`, as it comes and as it goes.

use k8s_openapi::ByteString;
use kube::core::DynamicObject;
use kube::core::admission::{
    AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND,
};
use serde_json::Value;

use super::{Answer, Outcome, Verdict};

/// Why what came is no review.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the body cannot be read as an AdmissionReview: {0}")]
    Unreadable(String),
    #[error("the body is {0:?} of {1:?}; expected {META_KIND:?} of {META_API_VERSION_V1:?}")]
    Other(String, String),
    #[error("the AdmissionReview has no request")]
    WithoutRequest,
    #[error("the answer cannot be written: {0}")]
    Unwritable(String),
}

/// As an HTTP status has it: the API server refuses what cannot be processed with it, too.
const UNPROCESSABLE: u16 = 422;

pub(super) fn read(body: &[u8]) -> Result<AdmissionRequest<DynamicObject>, Malformed> {
    let review: AdmissionReview<DynamicObject> =
        serde_json::from_slice(body).map_err(|error| Malformed::Unreadable(error.to_string()))?;
    let types = &review.types;
    if types.kind != META_KIND || types.api_version != META_API_VERSION_V1 {
        let types = types.clone();
        return Err(Malformed::Other(types.kind, types.api_version));
    }
    review.try_into().map_err(|_| Malformed::WithoutRequest)
}

pub(super) fn write(
    request: &AdmissionRequest<DynamicObject>,
    verdict: Verdict,
) -> Result<Answer, Malformed> {
    let unwritable = |error: &dyn std::error::Error| Malformed::Unwritable(error.to_string());
    let mut response = AdmissionResponse::from(request);
    let mut outcome = Outcome::Unchanged;
    if let Some(sentence) = verdict.refused {
        outcome = Outcome::Refused;
        response = response.deny(sentence);
        response.result.code = UNPROCESSABLE;
        response.result.reason = "Invalid".to_owned();
    } else if let Some(patch) = verdict.patch.finish() {
        outcome = Outcome::Changed;
        response = response
            .with_patch(patch)
            .map_err(|error| unwritable(&error))?;
    }
    if !verdict.warnings.is_empty() {
        let warnings = verdict.warnings.iter();
        response.warnings = Some(warnings.map(ToString::to_string).collect());
    }
    let patch = response.patch.take().map(ByteString);
    let mut review =
        serde_json::to_value(response.into_review()).map_err(|error| unwritable(&error))?;
    // kube writes it as a list of numbers, and the API says base64.
    if let Some(patch) = patch
        && let Some(response) = review.get_mut("response").and_then(Value::as_object_mut)
    {
        let patch = serde_json::to_value(patch).map_err(|error| unwritable(&error))?;
        response.insert("patch".to_owned(), patch);
    }
    let body = review.to_string().into_bytes();
    Ok(Answer { outcome, body })
}
