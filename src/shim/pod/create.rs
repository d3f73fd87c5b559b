//! The Create call: makes a container from a bundle. The container's init process is parked, which
//! means that its program does not run yet.

use std::collections::BTreeMap;
use std::sync::Arc;

use containerd_shim_protos::events::task::{TaskCreate, TaskIO};
use containerd_shim_protos::protobuf::MessageField;

use crate::record::What;
use usher_core::lifecycle::{BundleFacts, ContainerId, Demands, NewContainer, Wanted};
use usher_core::plan::identity::group;
use usher_core::plan::{Identity, KubeletFacts, Plan};
use usher_engine::{
    CancelToken, Container, CreateOptions, Created, EngineError, ExitFuture, Facts as Read, Init,
    InitialState, NewInit, Order,
};

use super::carryover::RestartCarryover;
use super::handles::Handles;
use super::operations::Caller;
use super::process::{Facts, Process, Task};
use super::scores::Score;
use super::stop::known_end;
use super::{Actor, CallError, CreateCall, Kind, Reply};

impl Actor {
    /// Creates a container; answers with the process id of its init.
    pub fn create(&mut self, mut call: CreateCall, reply: Reply<i32>) {
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
            has_deadline: call.patience.is_some(),
        };
        let (order, under) = (call.order, token.clone());
        let work = async move {
            let created = container.create(&order, options, &under).await?;
            let event = event(&order, &created.initial_state);
            Ok::<_, EngineError>((created, event))
        };
        let caller = Caller {
            reply,
            cancels: Some(token),
        };
        self.operate_for(&id, Wanted::UntilDeleted, caller, work, Actor::created);
    }

    /// Makes all checks that may refuse the call. A refused call leaves nothing behind.
    fn begin_create(
        &mut self,
        call: &CreateCall,
    ) -> Result<(Arc<dyn Container>, CancelToken), CallError> {
        let CreateCall { order, patience } = call;
        if order.sandbox.is_some() {
            self.refuse_second_sandbox(&order.id)?;
        }
        let (container, read) = self.node.engine.read(order, self.meta.sandbox())?;
        // In a pod without a pause container, the sandbox has received the pod's annotations. The
        // containers need not have them, and containerd may not have passed them on to the
        // containers.
        let plan = match self.meta.has_own_sandbox() {
            true => None,
            false => Some(self.plan(order, &read)?),
        };
        let identity = Identity::read(&order.id, &read.annotations);
        let kubelet = KubeletFacts::read(&read.annotations);
        let facts = Facts {
            ports: kubelet.ports.clone(),
            allotment: kubelet.allotment,
        };
        let id = ContainerId::from(order.id.as_str());
        let name = identity.name;
        let new = NewContainer {
            name: name.clone(),
            kind: identity.kind,
            facts: kubelet,
            demands: Demands {
                oom_score: read.oom_score,
                size: read.size,
            },
            is_ungrouped: group(&read.annotations).is_none(),
            bundle: BundleFacts {
                has_own_pid_namespace: read.has_own_pid_namespace,
                has_poststop_hooks: read.has_poststop_hooks,
            },
        };
        let now = self.now();
        self.core.handle_create(now, &id, new, plan, *patience)?;
        self.meta
            .learn(&order.id, &read.annotations, self.tasks.is_empty());
        let role = self.core.role_of(&id);
        let who = (name.as_str(), identity.kind, role);
        self.record.creates(now, &id, who);
        self.shim_end.mark_created(&id);
        let handles = Handles::default();
        let token = handles.cancel_token().clone();
        self.tasks.insert(
            id,
            Task {
                bundle: order.bundle.clone(),
                created_at: self.node.clock.wall(),
                container: Arc::clone(&container),
                facts,
                init: Process::new(order.paths.clone()),
                execs: BTreeMap::new(),
                handles,
                score: Score::new(read.oom_score),
                carryover: RestartCarryover::default(),
                deleters: Vec::new(),
            },
        );
        Ok((container, token))
    }

    fn plan(&self, order: &Order, read: &Read) -> Result<Plan, CallError> {
        let reading = Plan::parse_under(&read.annotations, &self.node.rules)
            .map_err(|error| CallError::new(Kind::InvalidArgument, error.to_string()))?;
        for unknown in &reading.ignored {
            tracing::warn!(container = order.id, "ignored: {unknown}");
        }
        Ok(reading.plan)
    }

    fn created(
        &mut self,
        id: &ContainerId,
        outcome: Result<(Created, TaskCreate), EngineError>,
        reply: Reply<i32>,
    ) {
        let (
            Created {
                initial_state,
                streams,
            },
            event,
        ) = match outcome {
            Ok(created) => created,
            Err(error) => {
                self.undone(id);
                return drop(reply.send(Err(error.into())));
            }
        };
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.init.streams = streams;
        let has_process = match initial_state {
            InitialState::Parked(new_init) => {
                self.take_init(id, new_init);
                true
            }
            InitialState::ToRestore(restoration) => {
                task.handles.set_restoration(restoration);
                false
            }
        };
        let now = self.now();
        if reply.is_closed() {
            tracing::info!(container = %id, "creation undone: its caller is gone");
            return self.core.handle_create_abandoned(now, id);
        }
        self.node.publish(event);
        self.record.note(now, id, What::Created);
        match has_process {
            true => self.core.handle_created(now, id),
            false => self.core.handle_created_to_restore(now, id),
        }
        self.watch_cgroup(id);
        let pid = self.tasks.get(id).map_or(0, |task| task.init.pid);
        let _ = reply.send(Ok(pid));
    }

    /// Stores an init process of a container: the first one, or the next one after a restart in
    /// place.
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
        self.watch_init(id, init, exit_future);
    }

    fn watch_init(&mut self, id: &ContainerId, init: Arc<dyn Init>, exit_future: ExitFuture) {
        self.operate(
            id,
            Wanted::UntilReplaced,
            exit_future.0,
            move |actor, id, outcome| {
                let status = known_end(outcome, || init.end());
                actor.init_ended(id, status);
            },
        );
    }

    /// Removes a container whose creation was undone.
    pub(super) fn undone(&mut self, id: &ContainerId) {
        self.forget(id);
        self.shim_end.note_failed_creation(self.tasks.is_empty());
    }

    /// Removes a container and all that the actor knows of it.
    pub(super) fn forget(&mut self, id: &ContainerId) {
        self.operations.cancel_all(id);
        if let Some(mut task) = self.tasks.remove(id) {
            let why = CallError::not_found(id.as_str(), "");
            task.init.answer_waits(Err(why.clone()));
            task.answer_deleters(&Err(why.clone()));
            for exec in task.execs.values_mut() {
                exec.process.answer_waits(Err(why.clone()));
            }
        }
        let now = self.now();
        self.record.note(now, id, What::Gone);
        if self.tasks.is_empty() {
            self.keep_record();
        }
        self.core.handle_removed(now, id);
    }
}

fn event(order: &Order, initial_state: &InitialState) -> TaskCreate {
    let pid = match initial_state {
        InitialState::Parked(new_init) => new_init.init.pid(),
        InitialState::ToRestore(_) => 0,
    };
    let mut io = TaskIO::new();
    io.set_stdin(order.paths.stdin.clone());
    io.set_stdout(order.paths.stdout.clone());
    io.set_stderr(order.paths.stderr.clone());
    io.set_terminal(order.paths.terminal);
    TaskCreate {
        container_id: order.id.clone(),
        bundle: order.bundle.display().to_string(),
        rootfs: order.rootfs.clone(),
        io: MessageField::some(io),
        checkpoint: order.checkpoint.clone(),
        pid: u32::try_from(pid).unwrap_or_default(),
        ..TaskCreate::new()
    }
}
