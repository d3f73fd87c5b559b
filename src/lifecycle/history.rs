//! What is remembered of names: containers come and go, their names have a past.

use std::collections::BTreeMap;

/// How many names are remembered. A pod's spec has fewer; a caller that makes up new ones without
/// end gets no completion inferred, which needs them all.
const NAMES_AT_MOST: usize = 1024;

/// The past of all names of a pod.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    names: BTreeMap<String, Past>,
    /// More names came than are remembered.
    incomplete: bool,
}

/// The past of one name.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// Its last creation, by the pod's count.
    pub created: u64,
    /// A container of that name has ended by itself with 0, in this sandbox.
    pub succeeded: bool,
    /// It has been created again since it succeeded, by the pod's count.
    pub reopened: Option<u64>,
    /// The code that the last container of that name ended with; none while it lives.
    pub code: Option<u32>,
}

impl History {
    /// A container of the name is being created, as number `number`.
    pub fn created(&mut self, name: &str, number: u64) {
        if self.names.len() >= NAMES_AT_MOST && !self.names.contains_key(name) {
            self.incomplete = true;
            return;
        }
        let past = self.names.entry(name.to_owned()).or_default();
        if past.succeeded {
            past.reopened.get_or_insert(number);
        }
        past.created = number;
        past.code = None;
    }

    /// The container of the name that counts has ended with `code`.
    pub fn ended(&mut self, name: &str, number: u64, code: u32) {
        if let Some(past) = self.names.get_mut(name)
            && past.created == number
        {
            past.code = Some(code);
            past.succeeded |= code == 0;
            past.reopened = past.reopened.filter(|_| code != 0);
        }
    }

    /// The creation of the name's container was undone.
    pub fn undone(&mut self, name: &str, number: u64) {
        if let Some(past) = self.names.get_mut(name)
            && past.created == number
            && past.code.is_none()
        {
            // As if it had failed: the caller will try again.
            past.code = Some(NEVER_CREATED);
        }
    }

    /// Whether no container of another name was ever created.
    pub fn is_alone(&self, name: &str) -> bool {
        !self.incomplete && self.names.keys().all(|other| other == name)
    }

    /// What is remembered of a name.
    pub fn of(&self, name: &str) -> Option<&Past> {
        self.names.get(name)
    }

    /// All names and their pasts; none if there were more than are remembered.
    pub fn all(&self) -> Option<impl Iterator<Item = (&str, &Past)>> {
        (!self.incomplete).then(|| self.names.iter().map(|(name, past)| (name.as_str(), past)))
    }
}

/// Stands for the exit code of a container that could not be created; 128 is what containerd gives
/// one that could not be started.
const NEVER_CREATED: u32 = 128;

impl Past {
    /// Whether the container with creation number `number` need not wait for an init container
    /// with this past. One that has succeeded stays done until it is created again, and then for
    /// those that were there before.
    pub fn is_done_for(&self, number: u64) -> bool {
        self.succeeded && self.reopened.is_none_or(|reopened| number < reopened)
    }
}
