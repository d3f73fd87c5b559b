//! Create: from a bundle to a container whose init process is parked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_shim_protos::events::task::{TaskCreate, TaskIO};
use containerd_shim_protos::protobuf::MessageField;

use crate::cgroup::{self, Cgroup};
use crate::lifecycle::{ContainerId, Demands, NewContainer};
use crate::plan::{Identity, KubeletFacts, Plan, PodIdentity};
use crate::reaper::{Child, Reaper};
use crate::record::What;
use crate::rootfs;
use crate::runtime::{Bundle, Namespaces, OciRuntime, Options, ProcessStdio, Restore, options};
use crate::sizing::Size;
use crate::stdio::{self, Owner, Setting, Streams};

use super::checkpoint::Restoring;
use super::delete::discard;
use super::error::caught;
use super::process::{Facts, Freezer, Process, Remains, Task};
use super::scores::{self, Score};
use super::{Actor, CallError, CreateCall, Kind, Reply};

/// How long a creation may take whose caller waits for ever: it may have reasons, such as a hook that
/// loads a driver.
const WITHOUT_A_DEADLINE: Duration = Duration::from_secs(600);

impl Actor {
    /// Creates a container; answers with the process id of its init.
    pub fn create(&mut self, call: CreateCall, reply: Reply<i32>) {
        match self.begin_create(&call) {
            Err(error) => drop(reply.send(Err(error))),
            Ok((runtime, options, joins)) => {
                let id = ContainerId::from(call.id.as_str());
                let surroundings = Surroundings {
                    namespace: self.namespace.clone(),
                    reaper: self.reaper.clone(),
                    may_restart: self.core.may_restart_in_place(&id),
                    joins,
                };
                if surroundings.may_restart
                    && let Some(task) = self.tasks.get_mut(&id)
                {
                    task.facts.joins = surroundings.joins.clone();
                }
                // What is raised has to be so before the container is there.
                self.settle_size();
                let score = self.score_for_bundle(&id);
                scores::write(&call.bundle, score);
                let mut runtime = runtime;
                if call.patience.is_none() {
                    runtime.within(WITHOUT_A_DEADLINE);
                }
                let halt = runtime.clone();
                let work = create(runtime, options, call, surroundings);
                self.job_for(reply, halt, work, move |actor, outcome, reply| {
                    actor.created(&id, outcome, reply)
                });
            }
        }
    }

    /// Everything that can be refused without leaving anything behind.
    fn begin_create(
        &mut self,
        call: &CreateCall,
    ) -> Result<(OciRuntime, Options, Namespaces), CallError> {
        let invalid = |error: String| CallError::new(Kind::InvalidArgument, error);
        let mut options = options::from_any(call.options.as_ref()).map_err(invalid)?;
        let bundle = Bundle::read(&call.bundle).map_err(|error| invalid(error.to_string()))?;
        options.systemd_cgroup |= options::implies_systemd_cgroup(call.options.as_ref(), &bundle);
        let reading = Plan::parse_under(&bundle.annotations, &self.rules)
            .map_err(|error| invalid(error.to_string()))?;
        for unknown in &reading.ignored {
            tracing::warn!(container = call.id, "ignored: {unknown}");
        }
        let plan = reading.plan;
        let joins = Namespaces::named(bundle.namespaces(), self.sandbox.as_ref())
            .map_err(|error| CallError::new(Kind::FailedPrecondition, error.to_string()))?;
        let identity = Identity::read(&call.id, &bundle.annotations);
        let kubelet = KubeletFacts::read(&bundle.annotations);
        let facts = Facts {
            owner: Owner {
                uid: options.io_uid,
                gid: options.io_gid,
            },
            has_poststart_hooks: bundle.has_poststart_hooks(),
            has_poststop_hooks: bundle.has_poststop_hooks(),
            has_own_pid_namespace: bundle.has_own_pid_namespace(),
            ports: kubelet.ports.clone(),
            termination_message: kubelet
                .termination_message_path
                .as_deref()
                .and_then(|path| bundle.mount_source(path))
                .map(Path::to_owned),
            allotment: kubelet.allotment,
            joins: Namespaces::default(),
        };
        let demands = Demands {
            oom_score: bundle.oom_score().unwrap_or_else(cgroup::scores::own),
            size: bundle.resources().change(Size::UNLIMITED),
        };
        let id = ContainerId::from(call.id.as_str());
        let name = identity.name;
        let new = NewContainer {
            name: name.clone(),
            kind: identity.kind,
            facts: kubelet,
            demands,
        };
        let now = self.now();
        self.core
            .handle_create(now, &id, new, plan, call.patience)?;
        let runtime = OciRuntime::new(&options, &self.namespace, &call.bundle, self.reaper.clone());
        if self.tasks.is_empty() {
            self.identity = PodIdentity::read(&call.id, &bundle.annotations);
        } else if self.identity.uid.is_empty() {
            // Not every containerd tells it of the sandbox.
            self.identity.uid = PodIdentity::read(&call.id, &bundle.annotations).uid;
        }
        let role = self.core.role_of(&id);
        let who = (name.as_str(), identity.kind, role);
        self.record.creates(now, &id, who);
        self.leaving = false;
        self.announced.remove(&id);
        self.tasks.insert(
            id,
            Task {
                bundle: call.bundle.clone(),
                runtime: runtime.clone(),
                facts,
                cgroup: None,
                oom_watch: None,
                last_figures: None,
                init: Process::new(call.paths.clone()),
                execs: BTreeMap::new(),
                creating: true,
                freezer: Freezer::Thawed,
                score: Score::new(demands.oom_score),
                deleting: false,
                restoring: None,
                remains: Remains::default(),
                restart_due: false,
                first_pid: None,
                post_start: None,
                resources: None,
                ended: None,
                unpublished: None,
                exit_delayed: false,
                releasing: None,
                delete: None,
            },
        );
        Ok((runtime, options, joins))
    }

    fn created(
        &mut self,
        id: &ContainerId,
        outcome: Result<(Beginning, Streams, TaskCreate), CallError>,
        reply: Reply<i32>,
    ) {
        let (beginning, streams, event) = match outcome {
            Ok(created) => created,
            Err(error) => {
                match reply.is_closed() {
                    true => self.undone(id),
                    false => self.forget(id),
                }
                return drop(reply.send(Err(error)));
            }
        };
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.init.streams = Some(streams);
        task.creating = reply.is_closed();
        match beginning {
            Beginning::Parked(child) => self.born(id, child),
            Beginning::Waiting(restore, stdio) => {
                task.restoring = Some(Restoring::Waiting(restore, stdio));
            }
        }
        if reply.is_closed() {
            // Whoever asked has gone away: nobody would ever delete the container.
            return self.undo_create(id);
        }
        self.publisher.publish(event);
        let now = self.now();
        self.record.note(now, id, What::Created);
        self.core.handle_created(now, id);
        let _ = reply.send(Ok(self.tasks.get(id).map_or(0, |task| task.init.pid)));
    }

    /// The container has an init process from now on.
    pub(super) fn born(&mut self, id: &ContainerId, child: Child) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        // Read at once: before its program runs it cannot have gone anywhere.
        match Cgroup::of(child.pid()) {
            Ok(cgroup) => task.cgroup = Some(Arc::new(cgroup)),
            Err(error) => tracing::warn!(container = %id, %error, "it will have no figures"),
        }
        task.init.pid = child.pid();
        if task.first_pid.is_none() && self.core.may_outlive_its_process(id) {
            task.first_pid = Some(child.pid());
            self.reaper.reserve(child.pid());
        }
        if !task.creating {
            self.watch_cgroup(id);
        }
        self.find_pod_cgroup(id);
        if self.core.is_sandbox(id) {
            self.sandbox = Some((child.pid(), Namespaces::of(child.pid())));
        }
        self.watch_init(id, child);
    }

    pub(super) fn watch_init(&self, id: &ContainerId, mut child: Child) {
        let (id, pid) = (id.clone(), child.pid());
        let wait = async move { child.wait().await };
        self.job(wait, move |actor, outcome| {
            let status = actor.known_end(pid, outcome);
            actor.init_ended(&id, status);
        });
    }

    /// The container has been created for nobody: nobody sees it before it is gone again.
    fn undo_create(&mut self, id: &ContainerId) {
        tracing::info!(container = %id, "undone: the caller of its creation has gone away");
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.deleting = true;
        let removal = super::delete::remove(id.to_string(), task, true);
        let id = id.clone();
        self.job(removal, move |actor, outcome| {
            if let Err(error) = outcome {
                tracing::error!(container = %id, %error, "not removed");
            }
            actor.undone(&id);
        });
    }

    /// A creation that nobody waits for has been undone; nobody will ask for the end again.
    fn undone(&mut self, id: &ContainerId) {
        self.forget(id);
        self.over |= self.leaving && self.is_idle();
    }

    /// The container is gone, and with it all that is known of it.
    pub(super) fn forget(&mut self, id: &ContainerId) {
        if let Some(mut task) = self.tasks.remove(id) {
            if let Some(pid) = task.first_pid {
                self.reaper.free(pid);
            }
            let why = CallError::not_found(id.as_str(), "");
            task.init.never_ran(&why);
            for exec in task.execs.values_mut() {
                exec.process.never_ran(&why);
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

async fn create(
    runtime: OciRuntime,
    options: Options,
    call: CreateCall,
    around: Surroundings,
) -> Result<(Beginning, Streams, TaskCreate), CallError> {
    if options != Options::default() {
        options::save(&call.bundle, &options).map_err(CallError::unknown)?;
    }
    rootfs::mount(&call.rootfs, &call.bundle, &around.reaper)
        .await
        .map_err(CallError::unknown)?;
    let setting = Setting {
        id: &call.id,
        namespace: &around.namespace,
        bundle: &call.bundle,
        owner: Owner {
            uid: options.io_uid,
            gid: options.io_gid,
        },
        reaper: &around.reaper,
        is_shared: around.may_restart,
    };
    let restore = restore(&call, &options);
    match caught(create_in(&runtime, &call, restore, &setting, &around.joins)).await {
        Ok((beginning, streams)) => {
            let event = event(&call, &beginning);
            Ok((beginning, streams, event))
        }
        Err(error) => {
            rootfs::unmount(&call.bundle);
            Err(error)
        }
    }
}

/// What is around a container that is created.
struct Surroundings {
    namespace: String,
    reaper: Reaper,
    /// It may be restarted in place.
    may_restart: bool,
    /// The namespaces that it is to be in.
    joins: Namespaces,
}

/// What a container is when it has been created.
enum Beginning {
    /// Its init process is there.
    Parked(Child),
    /// It is still to be restored.
    Waiting(Restore, ProcessStdio),
}

/// What the container is to be restored from, if it is.
fn restore(call: &CreateCall, options: &Options) -> Option<Restore> {
    let given = |path: &str| (!path.is_empty()).then(|| PathBuf::from(path));
    let image = given(&call.checkpoint).or_else(|| given(&options.criu_image_path))?;
    let work = given(&options.criu_work_path);
    Some(Restore { image, work })
}

async fn create_in(
    runtime: &OciRuntime,
    call: &CreateCall,
    restore: Option<Restore>,
    setting: &Setting<'_>,
    joins: &Namespaces,
) -> Result<(Beginning, Streams), CallError> {
    let (stdio, mut streams) = stdio::open(&call.paths, setting)
        .await
        .map_err(|error| CallError::new(Kind::InvalidArgument, error.to_string()))?;
    if let Some(restore) = restore {
        return Ok((Beginning::Waiting(restore, stdio), streams));
    }
    let created = match caught(runtime.create(&call.id, stdio)).await {
        Ok(child) => {
            let terminal = streams.receive_terminal(!call.paths.stdin.is_empty());
            let received = terminal.await.map_err(CallError::unknown);
            let is_there = runtime.is_in(&call.id, &child, joins);
            received.and(is_there.map_err(CallError::unknown).map(|()| child))
        }
        Err(error) => Err(CallError::unknown(error)),
    };
    match created {
        Ok(child) => Ok((Beginning::Parked(child), streams)),
        Err(error) => {
            // Some runtimes leave something behind when they fail.
            if let Err(leftover) = discard(runtime, &call.id, &call.bundle).await {
                tracing::debug!(id = call.id, error = %leftover, "nothing to delete after a failed create");
            }
            // Whoever takes its output has ended when the caller hears of it.
            stdio::drain([streams]).await;
            Err(error)
        }
    }
}

fn event(call: &CreateCall, beginning: &Beginning) -> TaskCreate {
    let pid = match beginning {
        Beginning::Parked(child) => child.pid(),
        Beginning::Waiting(..) => 0,
    };
    let mut io = TaskIO::new();
    io.set_stdin(call.paths.stdin.clone());
    io.set_stdout(call.paths.stdout.clone());
    io.set_stderr(call.paths.stderr.clone());
    io.set_terminal(call.paths.terminal);
    TaskCreate {
        container_id: call.id.clone(),
        bundle: call.bundle.display().to_string(),
        rootfs: call.rootfs.clone(),
        io: MessageField::some(io),
        checkpoint: call.checkpoint.clone(),
        pid: u32::try_from(pid).unwrap_or_default(),
        ..TaskCreate::new()
    }
}
