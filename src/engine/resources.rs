//! The parts of the OCI specification's `LinuxResources` from which the shim computes the size of a
//! pod's cgroup.

use serde::Deserialize;

use usher_core::sizing::{Bytes, Limit, Millicores, Size, SizeChange};

/// Default period of a CPU quota in the kernel, in microseconds.
const DEFAULT_PERIOD: u64 = 100_000;

/// CPU shares of a container without a CPU request (kubelet's `MinShares`).
const MIN_SHARES: u64 = 2;

/// Resources in a container's `config.json` or in an Update. In both, each field is optional.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    cpu: Option<Cpu>,
    memory: Option<Memory>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Cpu {
    shares: Option<u64>,
    /// CPU time that the container may use in each period, in microseconds. Zero or negative for no
    /// limit.
    quota: Option<i64>,
    period: Option<u64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Memory {
    /// Memory limit in bytes. Zero or negative for no limit.
    limit: Option<i64>,
}

impl Resources {
    /// Parses an Update. Malformed JSON yields no change and no error here: the OCI runtime gets
    /// the same JSON, and reports the error.
    pub fn parse(json: &[u8]) -> Resources {
        serde_json::from_slice(json).unwrap_or_default()
    }

    /// Returns the change of the container's size.
    pub fn size_change(&self) -> SizeChange {
        let cpu = self.cpu.unwrap_or_default();
        let memory_limit = self.memory.unwrap_or_default().limit.map(|limit| {
            let limit = u64::try_from(limit).ok().filter(|limit| *limit > 0);
            limit.map(Bytes).into()
        });
        SizeChange {
            cpu_request: cpu.shares.map(request),
            cpu_limit: cpu.quota.map(|quota| cpu_limit(quota, cpu.period)),
            memory_limit,
        }
    }

    /// Returns the new size of a container whose size was `before`.
    pub fn change(&self, before: Size) -> Size {
        before.changed(self.size_change())
    }
}

/// Inverse of kubelet's `MilliCPUToShares`, which gives 1024 shares per CPU, rounded down.
/// Different requests have different shares, so the request is known exactly.
fn request(shares: u64) -> Millicores {
    let shares = if shares <= MIN_SHARES { 0 } else { shares };
    Millicores(shares.saturating_mul(1000).div_ceil(1024))
}

fn cpu_limit(quota: i64, period: Option<u64>) -> Limit<Millicores> {
    let quota = u64::try_from(quota).ok().filter(|quota| *quota > 0);
    let period = period.filter(|period| *period > 0);
    let millis = quota.map(|quota| {
        let millis = quota.saturating_mul(1000);
        Millicores(millis.div_ceil(period.unwrap_or(DEFAULT_PERIOD)))
    });
    millis.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_request_is_computed_from_kubelets_shares() {
        for millis in (3..5_000).chain([64_000, 256_000]) {
            let shares = millis * 1024 / 1000;
            assert_eq!(request(shares), Millicores(millis));
        }
        // kubelet sets `cpu.shares` to 2 for a container without a CPU request.
        assert_eq!(request(2), Millicores(0));
    }

    #[test]
    fn a_missing_value_changes_nothing_and_one_that_is_not_positive_is_no_limit() {
        let all = r#"{"cpu":{"shares":102,"quota":15000,"period":10000},"memory":{"limit":4096}}"#;
        let size = Resources::parse(all.as_bytes()).change(Size::UNLIMITED);
        assert_eq!(size.requests.cpu, Millicores(100));
        assert_eq!(size.limits.cpu, Limit::Of(Millicores(1500)));
        assert_eq!(size.limits.memory, Limit::Of(Bytes(4096)));
        assert_eq!(Resources::parse(b"nonsense").change(size), size);
        let lifted = Resources::parse(br#"{"cpu":{"quota":-1},"memory":{"limit":0}}"#);
        assert_eq!(lifted.change(size).limits, Size::UNLIMITED.limits);
        assert_eq!(lifted.change(size).requests, size.requests);
    }

    #[test]
    fn a_quota_without_a_period_has_the_kernels_default() {
        assert_eq!(cpu_limit(25_000, None), Limit::Of(Millicores(250)));
        assert_eq!(cpu_limit(1, Some(3)), Limit::Of(Millicores(334)));
    }
}
