//! The values that systemd was told for a cgroup.

use std::mem;

/// At most this many unconfirmed values are remembered, and as many former values. After the first
/// few failures, the shim tells systemd one value a minute, so older values date from minutes ago.
/// Former values are forgotten after the first success.
const REMEMBERED_AT_MOST: usize = 8;

/// The values that systemd may write into the cgroup at any time, for example at a daemon-reload.
/// If one of them appears in the cgroup, no other program has resized the pod.
#[derive(Debug)]
pub(super) struct Told {
    /// The value that systemd confirmed last. At first the original value. If another program has
    /// set a value since, that value, because kubelet tells systemd its values as well.
    confirmed: u64,
    /// True if another program has set `confirmed`, and the shim has not begun to tell systemd a
    /// value since.
    is_overruled: bool,
    /// The value that systemd is being told.
    under_way: Option<u64>,
    /// Values that systemd was told since then, but has not confirmed.
    unconfirmed: Vec<u64>,
    /// Values from before `confirmed`. systemd may have written one of them over a newer value,
    /// before it was told the newer value. A program that writes only the cgroup tells systemd
    /// nothing. And systemd confirms a value before it writes the value.
    former: Vec<u64>,
}

impl Told {
    /// systemd holds only the original value.
    pub fn new(original: u64) -> Told {
        Told {
            confirmed: original,
            is_overruled: false,
            under_way: None,
            unconfirmed: Vec::new(),
            former: Vec::new(),
        }
    }

    /// True if systemd may have written `value`.
    pub fn includes(&self, value: u64) -> bool {
        self.confirmed == value
            || self.under_way == Some(value)
            || self.unconfirmed.contains(&value)
            || self.former.contains(&value)
    }

    /// True if systemd holds `value`, and will write no other value.
    fn is_only(&self, value: u64) -> bool {
        let is_settled = self.unconfirmed.is_empty() && self.under_way.is_none();
        is_settled && !self.is_overruled && self.confirmed == value
    }

    /// True if systemd may write a value below `value`, until it has confirmed the latest value.
    pub fn may_be_below(&self, value: u64) -> bool {
        let told = self.unconfirmed.iter().chain(&self.under_way);
        told.chain([&self.confirmed]).any(|told| *told < value)
    }

    /// Notes that the cgroup has `value`. If systemd holds only this value, it cannot write a
    /// former one any more.
    pub fn note_read(&mut self, value: u64) {
        if self.is_only(value) {
            self.former.clear();
        }
    }

    /// Notes that another program has set `value`. Forgets that program's value from before, which
    /// is `ceiling`, because the program may set it again.
    pub fn overrule(&mut self, value: u64, ceiling: u64) {
        let before = mem::replace(&mut self.confirmed, value);
        self.make_former(before);
        self.former.retain(|former| *former != ceiling);
        self.is_overruled = true;
    }

    /// Makes `before` and the unconfirmed values former values.
    fn make_former(&mut self, before: u64) {
        for value in self.unconfirmed.drain(..).chain([before]) {
            remember(&mut self.former, value);
        }
    }

    /// Returns true if systemd has to be told `value`, and notes that it is being told. If
    /// `only_raised` is true, a value that is not higher than the one before is left for later.
    pub fn begin(&mut self, value: u64, only_raised: bool) -> bool {
        let is_left = only_raised && value <= self.confirmed;
        let begins = !is_left && !self.is_only(value);
        if begins {
            self.is_overruled = false;
            self.under_way = Some(value);
        }
        begins
    }

    /// Notes whether systemd has confirmed the value that it was told, if it was told one. If it has
    /// not, it may know the value or not.
    pub fn note_answer(&mut self, is_confirmed: bool) {
        let Some(value) = self.under_way.take() else {
            return;
        };
        if is_confirmed {
            let before = mem::replace(&mut self.confirmed, value);
            self.make_former(before);
        } else {
            remember(&mut self.unconfirmed, value);
        }
    }
}

/// Adds a value. Drops the oldest one if there are too many.
fn remember(values: &mut Vec<u64>, value: u64) {
    if !values.contains(&value) {
        values.push(value);
    }
    let surplus = values.len().saturating_sub(REMEMBERED_AT_MOST);
    values.drain(..surplus);
}
