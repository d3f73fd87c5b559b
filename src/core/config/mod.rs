//! The configuration of a node, whose administrator overrules pod authors.
//!
//! The configuration applies to all pods that start on the node. The caller of this module reads
//! the file, and decides where the file is. If the file cannot be read, the caller decides what
//! happens to pods that start.

pub mod reference;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::plan::{
    Limits, Minimums, PlanError, Problem, Roles, RolesError, Rules, UnknownKeys, parse_duration,
};

/// The mistake in a configuration: one sentence that begins with the line, or the table and the
/// key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The parser's own message.
    #[error("line {line}: {message}")]
    Malformed { line: usize, message: String },
    #[error("in [{table}], {name}: {value:?} {problem}")]
    Duration {
        table: &'static str,
        name: &'static str,
        value: String,
        #[source]
        problem: Problem,
    },
    /// A minimum above its limit, so that no value would be allowed.
    #[error("in [minimums], {name}: {minimum:?} is too high; [limits] allows at most {limit:?}")]
    AboveLimit {
        name: &'static str,
        minimum: Duration,
        limit: Duration,
    },
    #[error("in [defaults], as an annotation, {0}")]
    Defaults(#[source] PlanError),
    #[error("in [roles], {0}")]
    Roles(#[source] RolesError),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct Raw {
    enabled: Option<bool>,
    unknown_keys: Option<RawUnknownKeys>,
    /// Defaults of pod settings: the setting's name, and a value as in annotations.
    defaults: BTreeMap<String, String>,
    limits: RawLimits,
    minimums: RawMinimums,
    roles: RawRoles,
}

/// Roles of injected containers, by names and patterns.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct RawRoles {
    sidecars: Vec<String>,
    everywhere: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum RawUnknownKeys {
    Refuse,
    Warn,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct RawLimits {
    grace_period: Option<String>,
    startup_timeout: Option<String>,
    termination_window: Option<String>,
    grace_extension: Option<String>,
    grace_extension_count: Option<u32>,
    probe_initial_delay: Option<String>,
    probe_period: Option<String>,
    probe_timeout: Option<String>,
    probe_failure_threshold: Option<u32>,
    hook_sleep: Option<String>,
    names: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct RawMinimums {
    grace_period: Option<String>,
    startup_timeout: Option<String>,
    termination_window: Option<String>,
    probe_period: Option<String>,
}

/// Reads rules from the text of a file.
///
/// # Errors
///
/// The first mistake in the file.
pub fn parse(text: &str) -> Result<Rules, ConfigError> {
    let raw: Raw = toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(0, |before| before.matches('\n').count());
        ConfigError::Malformed {
            line: line.saturating_add(1),
            message: error.message().replace('\n', ", "),
        }
    })?;
    let limits = raw.limits.read()?;
    let minimums = raw.minimums.read()?;
    contradict(&limits, &minimums)?;
    let mut rules = Rules::new(&raw.defaults, limits, minimums).map_err(ConfigError::Defaults)?;
    rules.roles =
        Roles::new(&raw.roles.sidecars, raw.roles.everywhere).map_err(ConfigError::Roles)?;
    rules.enabled = raw.enabled.unwrap_or(true);
    rules.unknown_keys = match raw.unknown_keys {
        None => UnknownKeys::default(),
        Some(RawUnknownKeys::Refuse) => UnknownKeys::Refuse,
        Some(RawUnknownKeys::Warn) => UnknownKeys::Warn,
    };
    Ok(rules)
}

impl RawLimits {
    fn read(&self) -> Result<Limits, ConfigError> {
        let time = |name, value| time("limits", name, value);
        Ok(Limits {
            grace_period: time("grace-period", &self.grace_period)?,
            startup_timeout: time("startup-timeout", &self.startup_timeout)?,
            termination_window: time("termination-window", &self.termination_window)?,
            grace_extension: time("grace-extension", &self.grace_extension)?,
            grace_extension_count: self.grace_extension_count,
            probe_initial_delay: time("probe-initial-delay", &self.probe_initial_delay)?,
            probe_period: time("probe-period", &self.probe_period)?,
            probe_timeout: time("probe-timeout", &self.probe_timeout)?,
            probe_failure_threshold: self.probe_failure_threshold,
            hook_sleep: time("hook-sleep", &self.hook_sleep)?,
            names: self.names,
        })
    }
}

impl RawMinimums {
    fn read(&self) -> Result<Minimums, ConfigError> {
        let time = |name, value| time("minimums", name, value);
        Ok(Minimums {
            grace_period: time("grace-period", &self.grace_period)?,
            startup_timeout: time("startup-timeout", &self.startup_timeout)?,
            termination_window: time("termination-window", &self.termination_window)?,
            probe_period: time("probe-period", &self.probe_period)?,
        })
    }
}

/// Refuses a minimum that is above its limit, because no value could satisfy both.
fn contradict(limits: &Limits, minimums: &Minimums) -> Result<(), ConfigError> {
    for (name, minimum, limit) in [
        ("grace-period", minimums.grace_period, limits.grace_period),
        (
            "startup-timeout",
            minimums.startup_timeout,
            limits.startup_timeout,
        ),
        (
            "termination-window",
            minimums.termination_window,
            limits.termination_window,
        ),
        ("probe-period", minimums.probe_period, limits.probe_period),
    ] {
        if let (Some(minimum), Some(limit)) = (minimum, limit)
            && minimum > limit
        {
            return Err(ConfigError::AboveLimit {
                name,
                minimum,
                limit,
            });
        }
    }
    Ok(())
}

fn time(
    table: &'static str,
    name: &'static str,
    value: &Option<String>,
) -> Result<Option<Duration>, ConfigError> {
    let Some(value) = value else {
        return Ok(None);
    };
    let duration = parse_duration(value).map_err(|problem| ConfigError::Duration {
        table,
        name,
        value: value.clone(),
        problem,
    })?;
    Ok(Some(duration))
}
