//! Durations in Go's format.

use std::time::Duration;

use super::error::Problem;

/// Maximum duration in whole seconds, because Go counts nanoseconds in an `int64`. No duration in a
/// plan is longer, so that each can be added to the time of any clock.
pub const MAX_SECONDS: u64 = 9_223_372_036;

/// Upper bound of Go's parser: 2^63 nanoseconds.
const LIMIT: u64 = 1 << 63;

/// Reads a Go duration, such as `300ms`, `1.5h` or `1h2m3.5s`: numbers with or without a fraction,
/// each with a unit of `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`; or a bare `0`.
///
/// Accepts what Go's `time.ParseDuration` accepts, to the nanosecond, unless it is negative.
///
/// # Errors
///
/// Text that Go refuses, a negative duration, and more than `i64::MAX` nanoseconds.
pub fn parse(text: &str) -> Result<Duration, Problem> {
    let (negative, amounts) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let nanoseconds = match amounts {
        "0" => 0,
        "" => return Err(malformed()),
        _ => sum(amounts)?,
    };
    if negative && nanoseconds > 0 {
        return Err(Problem::new(
            "is negative; expected a duration of 0 or more",
        ));
    }
    if nanoseconds >= LIMIT {
        return Err(too_long());
    }
    Ok(Duration::from_nanos(nanoseconds))
}

/// The sum in nanoseconds of all amounts, at most [`LIMIT`].
fn sum(mut rest: &str) -> Result<u64, Problem> {
    let mut total = 0_u64;
    while !rest.is_empty() {
        let amount;
        (amount, rest) = amount_and_rest(rest)?;
        total = within_limit(total.checked_add(amount))?;
    }
    Ok(total)
}

/// The first amount in nanoseconds, and the text after it.
fn amount_and_rest(text: &str) -> Result<(u64, &str), Problem> {
    let is_digit = |c: char| c.is_ascii_digit();
    let (whole, rest) = span(text, is_digit);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => span(rest, is_digit),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return Err(malformed());
    }
    let (unit, rest) = span(rest, |c| c != '.' && !is_digit(c));
    let unit = unit_in_nanoseconds(unit).ok_or_else(malformed)?;

    let whole = if whole.is_empty() {
        Some(0)
    } else {
        whole.parse::<u64>().ok()
    };
    let whole = within_limit(whole.and_then(|whole| whole.checked_mul(unit)))?;
    let amount = within_limit(whole.checked_add(part_of(fraction, unit)))?;
    Ok((amount, rest))
}

/// Returns `0.<fraction>` of `unit`, rounded as in Go: digits that do not fit into an `int64` are
/// ignored, and the product is computed in floats.
fn part_of(fraction: &str, unit: u64) -> u64 {
    let mut digits = 0_u64;
    let mut scale = 1_f64;
    for digit in fraction.chars().filter_map(|c| c.to_digit(10)) {
        let longer = digits
            .checked_mul(10)
            .and_then(|tens| tens.checked_add(u64::from(digit)));
        match longer {
            Some(longer) if longer <= LIMIT => digits = longer,
            _ => break,
        }
        scale *= 10.0;
    }
    (digits as f64 * (unit as f64 / scale)) as u64
}

fn unit_in_nanoseconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "ns" => 1,
        // The micro sign and the Greek letter look the same; Go takes both.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// The longest prefix of `text` whose characters are all `wanted`, and the rest.
fn span(text: &str, wanted: impl Fn(char) -> bool) -> (&str, &str) {
    text.find(|c| !wanted(c))
        .and_then(|end| text.split_at_checked(end))
        .unwrap_or((text, ""))
}

fn within_limit(nanoseconds: Option<u64>) -> Result<u64, Problem> {
    nanoseconds
        .filter(|&nanoseconds| nanoseconds <= LIMIT)
        .ok_or_else(too_long)
}

fn malformed() -> Problem {
    Problem::new("is not a duration; expected one such as 300ms, 90s or 1h30m")
}

fn too_long() -> Problem {
    Problem::new("is too long; expected a duration of at most 292 years")
}
