//! The method `UpdateSandbox`: containerd 2.4 and later calls it when kubelet resizes a pod.
//! The crate with containerd's protocol does not have the method yet.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use containerd_shim_protos::sandbox_api::{UpdateSandboxRequest, UpdateSandboxResponse};
use containerd_shim_protos::sandbox_async::create_sandbox;
use ttrpc::r#async::{MethodHandler, Service, TtrpcContext};

use crate::pod::Pod;
use crate::task::status;

use super::Sandboxes;

/// containerd's name of the Sandbox service, and the name of the added method.
const SERVICE: &str = "containerd.runtime.sandbox.v1.Sandbox";
const METHOD: &str = "UpdateSandbox";

/// The Sandbox service of `pod`, under its ttrpc name, with `UpdateSandbox` added.
pub fn services(pod: Pod) -> HashMap<String, Service> {
    let sandboxes = Arc::new(Sandboxes::new(pod));
    let mut services = create_sandbox(Arc::clone(&sandboxes) as _);
    if let Some(service) = services.get_mut(SERVICE) {
        let update = UpdateSandbox { service: sandboxes };
        service.methods.insert(METHOD.to_owned(), Box::new(update));
    }
    services
}

struct UpdateSandbox {
    service: Arc<Sandboxes>,
}

#[async_trait]
impl MethodHandler for UpdateSandbox {
    async fn handler(
        &self,
        ctx: TtrpcContext,
        req: ttrpc::Request,
    ) -> ttrpc::Result<ttrpc::Response> {
        ttrpc::async_request_handler!(self, ctx, req, UpdateSandboxRequest, update_sandbox);
    }
}

impl Sandboxes {
    /// Handles a resize of the pod. Ignores the values in the request, and reads the pod's cgroup, to
    /// which kubelet writes the new values after this call.
    pub(super) async fn update_sandbox(
        &self,
        _: &TtrpcContext,
        req: UpdateSandboxRequest,
    ) -> ttrpc::Result<UpdateSandboxResponse> {
        let resized = self
            .pod
            .ask(move |actor, reply| actor.sandbox_resized(&req.sandbox_id, reply));
        resized.await.map_err(status)?;
        Ok(UpdateSandboxResponse::new())
    }
}
