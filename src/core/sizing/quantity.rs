//! Amounts of resources, each with its unit.

use serde::{Deserialize, Serialize};

/// Thousandths of a CPU.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Millicores(pub u64);

/// Bytes of memory.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Bytes(pub u64);

/// An upper bound of usage. `Unlimited` is greater than any amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Limit<Q> {
    Of(Q),
    Unlimited,
}

/// An amount that the formula can add and compare.
pub(super) trait Quantity: Copy + Ord + Default {
    /// Returns the sum, or the largest possible amount if the sum overflows.
    fn plus(self, other: Self) -> Self;
}

impl Quantity for Millicores {
    fn plus(self, other: Self) -> Self {
        Millicores(self.0.saturating_add(other.0))
    }
}

impl Quantity for Bytes {
    fn plus(self, other: Self) -> Self {
        Bytes(self.0.saturating_add(other.0))
    }
}

/// A missing amount means no bound, in Kubernetes as in the kernel.
impl<Q> From<Option<Q>> for Limit<Q> {
    fn from(amount: Option<Q>) -> Self {
        amount.map_or(Limit::Unlimited, Limit::Of)
    }
}

/// The default limit is zero, not `Unlimited`.
impl<Q: Default> Default for Limit<Q> {
    fn default() -> Self {
        Limit::Of(Q::default())
    }
}

impl<Q: Quantity> Quantity for Limit<Q> {
    fn plus(self, other: Self) -> Self {
        match (self, other) {
            (Limit::Of(one), Limit::Of(other)) => Limit::Of(one.plus(other)),
            _ => Limit::Unlimited,
        }
    }
}
