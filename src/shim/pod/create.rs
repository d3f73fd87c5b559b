//! The Create call: makes a container from a bundle. The container's program does not run yet.

use std::sync::Arc;

use containerd_shim_protos::events::task::TaskCreate;

use crate::bundle;
use crate::calls::{CallError, Caller, CreateCall, Reply};
use crate::events;
use crate::record::What;
use crate::task_table::outcome::status_or_kill;
use crate::task_table::{Facts, Score, Task};
use usher_core::lifecycle::{ContainerId, Wanted};
use usher_engine::{
    CancelToken, Container, CreateOptions, Created, EngineError, InitialState, NewInit,
};

use super::Actor;

impl Actor {
    /// Creates a container; answers with the process id of its init, or zero if the container is to
    /// be restored later. If the caller stops waiting, undoes the creation.
    pub fn create(&mut self, mut call: CreateCall, reply: Reply<i32>) {
        self.shim_end.note_create();
        let Some(reading) = self.node.engine.read_options_file(&call.order) else {
            return self.create_with_options(call, reply);
        };
        self.spawn(reading, move |actor, options| match options {
            Ok(options) => {
                call.order.options = Some(options);
                actor.create_with_options(call, reply);
            }
            Err(error) => drop(reply.send(Err(error.into()))),
        });
    }

    fn create_with_options(&mut self, call: CreateCall, reply: Reply<i32>) {
        let (container, token) = match self.begin_create(&call) {
            Err(error) => return drop(reply.send(Err(error))),
            Ok(begun) => begun,
        };
        let id = ContainerId::from(call.order.id.as_str());
        // Raise the pod's limits before the container exists.
        self.settle_size();
        let options = CreateOptions {
            oom_score: self.score_for_bundle(&id),
            may_restart: self.core.may_restart_in_place(&id),
            call_timeout: call.call_timeout,
        };
        let (order, under) = (call.order, token.clone());
        let work = async move {
            let created = container.create(&order, options, &under).await?;
            let event = events::task::created(&order, created.initial_state.pid());
            Ok::<_, EngineError>((created, event))
        };
        let caller = Caller {
            reply,
            cancels: Some(token),
        };
        self.operate_for(
            &id,
            Wanted::UntilDeleted,
            caller,
            work,
            Actor::finish_create,
        );
    }

    /// Checks a Create call, and adds the container to the core, the record and the table of tasks.
    /// The container itself is not made yet. A refused call adds nothing to them. But the core
    /// remembers a container that comes after the death of its sandbox: its work is not done.
    fn begin_create(
        &mut self,
        call: &CreateCall,
    ) -> Result<(Arc<dyn Container>, CancelToken), CallError> {
        let CreateCall {
            order,
            call_timeout,
        } = call;
        if order.sandbox.is_some() {
            let living = self.tasks.keys().find(|id| self.core.is_sandbox(id));
            self.sandbox_end.refuse_second(&order.id, living)?;
        }
        let (container, read) = self.node.engine.read(order, self.meta.sandbox())?;
        // In a pod without a pause container, the plan comes from the annotations of the sandbox.
        // The containers may lack these annotations, because containerd does not always pass them
        // on.
        let plan = match self.meta.has_own_sandbox() {
            true => None,
            false => Some(bundle::plan(&order.id, &read, &self.node.rules)?),
        };
        let id = ContainerId::from(order.id.as_str());
        let new = bundle::new_container(&order.id, &read);
        let (name, kind) = (new.name.clone(), new.kind);
        let facts = Facts::from(&new.facts);
        let now = self.now();
        self.core
            .handle_create(now, &id, new, plan, *call_timeout)?;
        self.meta
            .learn(&order.id, &read.annotations, self.tasks.is_empty());
        let role = self.core.role_of(&id);
        self.record.creates(now, &id, (name.as_str(), kind, role));
        self.shim_end.mark_created(&id);
        let created_at = self.node.clock.wall();
        let score = Score::new(read.oom_score);
        let task = Task::new(order, Arc::clone(&container), created_at, facts, score);
        let token = task.handles.cancel_token().clone();
        self.tasks.insert(id, task);
        Ok((container, token))
    }

    fn finish_create(
        &mut self,
        id: &ContainerId,
        outcome: Result<(Created, TaskCreate), EngineError>,
        reply: Reply<i32>,
    ) {
        let (created, event) = match outcome {
            Ok(created) => created,
            Err(error) => {
                self.remove_failed_creation(id);
                return drop(reply.send(Err(error.into())));
            }
        };
        let (now, pid) = (self.now(), created.initial_state.pid());
        let is_parked = matches!(created.initial_state, InitialState::Parked(_));
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.init.streams = created.streams;
        match created.initial_state {
            InitialState::Parked(new_init) => self.take_init(id, new_init),
            InitialState::ToRestore(restoration) => task.handles.set_restoration(restoration),
        }
        if reply.is_closed() {
            tracing::info!(container = %id, "creation undone: its caller is gone");
            return self.core.handle_create_abandoned(now, id);
        }
        self.node.publish(event);
        self.record.note(now, id, What::Created);
        match is_parked {
            true => self.core.handle_created(now, id),
            false => self.core.handle_created_to_restore(now, id),
        }
        self.watch_cgroup(id);
        let _ = reply.send(Ok(pid));
    }

    /// Stores a new init process of a container, and handles its exit when it comes. Called after a
    /// Create, a restoration or a restart in place. The caller then begins the watch for OOM kills
    /// ([`watch_cgroup`](Actor::watch_cgroup)). Does nothing if the container is gone.
    pub(super) fn take_init(&mut self, id: &ContainerId, new_init: NewInit) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let NewInit { init, exit_future } = new_init;
        task.handles.set_init(Arc::clone(&init));
        task.init.pid = init.pid();
        let may_outlive = self.core.may_outlive_its_process(id);
        task.carryover.reserve_pid(&*init, may_outlive);
        self.find_pod_cgroup(id);
        if self.core.is_sandbox(id) {
            self.meta.set_sandbox(&*init);
        }
        let exited = move |actor: &mut Actor, id: &ContainerId, outcome| {
            let status = status_or_kill(outcome, || init.end());
            actor.handle_init_exit(id, status);
        };
        self.operate(id, Wanted::UntilReplaced, exit_future.0, exited);
    }

    /// Removes a container whose creation has failed or was undone. If containerd has already asked
    /// the shim to end, the shim may end now.
    pub(super) fn remove_failed_creation(&mut self, id: &ContainerId) {
        self.remove_task(id);
        self.shim_end.note_failed_creation(self.tasks.is_empty());
    }

    /// Removes all that the actor and the core know of a container. Does not touch the container
    /// itself. Wait and Delete calls that are still open get the error NotFound.
    pub(super) fn remove_task(&mut self, id: &ContainerId) {
        self.operations.cancel_all(id);
        if let Some(mut task) = self.tasks.remove(id) {
            task.fail_waits_and_deletes(&CallError::not_found(id.as_str(), ""));
        }
        let now = self.now();
        self.record.note(now, id, What::Gone);
        if self.tasks.is_empty() {
            self.keep_record();
        }
        self.core.handle_removed(now, id);
    }
}
