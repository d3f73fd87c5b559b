//! Quantities as Kubernetes writes them (`k8s.io/apimachinery/pkg/api/resource`).

use super::error::Problem;
use serde::{Deserialize, Serialize};

/// Maximum number of decimal digits of an `int64`.
const MAX_WHOLE_DIGITS: i64 = 19;

/// A quantity, exactly as written: `digits × 10^exponent × 2^doublings`.
///
/// Digits are kept one by one, so that no fraction is too long and rounding is exact.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Quantity {
    /// Decimal digits, the most significant first, without zeros at either end; empty for zero.
    digits: Vec<u8>,
    exponent: i64,
    doublings: u32,
}

impl Quantity {
    /// Reads a quantity: a number such as `1`, `0.5`, `.5` or `1.` with a suffix of `n` to `E`,
    /// `Ki` to `Ei`, or an exponent such as `e3` or `E-2`.
    ///
    /// # Errors
    ///
    /// Any other text, and values below zero.
    pub(super) fn parse(text: &str) -> Result<Quantity, Problem> {
        let (negative, number) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let suffix = number.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        let number = number.strip_suffix(suffix).unwrap_or_default();
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(malformed());
        }
        let (exponent, doublings) = scale(suffix).ok_or_else(malformed)?;

        let digits = whole
            .bytes()
            .chain(fraction.bytes())
            .map(|digit| digit.saturating_sub(b'0'));
        let mut digits: Vec<u8> = digits.skip_while(|&digit| digit == 0).collect();
        let mut exponent = exponent.saturating_sub_unsigned(fraction.len() as u64);
        while digits.pop_if(|digit| *digit == 0).is_some() {
            exponent = exponent.saturating_add(1);
        }
        if negative && !digits.is_empty() {
            return Err(Problem::new(
                "is negative; expected a quantity of 0 or more",
            ));
        }
        Ok(Quantity {
            digits,
            exponent,
            doublings,
        })
    }

    /// The quantity in whole units (for memory: bytes), rounded up.
    ///
    /// # Errors
    ///
    /// If the result does not fit into an `int64`, which is the limit of Kubernetes.
    pub(super) fn units(&self) -> Result<u64, Problem> {
        self.rounded_up(0)
    }

    /// The quantity in thousandths (for CPU: millicores), rounded up.
    ///
    /// # Errors
    ///
    /// If the result does not fit into an `int64`, which is the limit of Kubernetes.
    pub(super) fn thousandths(&self) -> Result<u64, Problem> {
        self.rounded_up(3)
    }

    /// The quantity times `10^shift`, rounded up.
    ///
    /// # Errors
    ///
    /// If the result does not fit into an `int64`, which is the limit of Kubernetes.
    fn rounded_up(&self, shift: i64) -> Result<u64, Problem> {
        let length = i64::try_from(self.digits.len()).map_err(|_| too_much())?;
        // The position of the decimal point: the number of digits before it. If negative, that many
        // zeros follow the point before the first digit.
        let point = self.exponent.saturating_add(shift).saturating_add(length);
        if self.digits.is_empty() {
            return Ok(0);
        }
        if point > MAX_WHOLE_DIGITS {
            return Err(too_much());
        }
        let before = usize::try_from(point).unwrap_or(0);
        let factor = 1_u128.checked_shl(self.doublings).ok_or_else(too_much)?;
        let whole = self
            .digits
            .iter()
            .chain(std::iter::repeat(&0))
            .take(before)
            .try_fold(0_u128, |whole, &digit| {
                whole.checked_mul(10)?.checked_add(digit.into())
            });

        // Multiplies the fraction by the factor, digit by digit from the last one. The carry that
        // is left is the product's whole part.
        let mut carry = 0_u128;
        let mut exact = true;
        let after = self.digits.iter().skip(before).rev().copied();
        // After 20 zeros the carry is zero: it is below 2^64, and each zero digit divides it by
        // ten.
        let zeros = point.min(0).unsigned_abs().min(20);
        for digit in after.chain((0..zeros).map(|_| 0)) {
            carry = factor.saturating_mul(digit.into()).saturating_add(carry);
            exact &= carry.is_multiple_of(10);
            carry /= 10;
        }

        whole
            .and_then(|whole| whole.checked_mul(factor))
            .and_then(|total| total.checked_add(carry))
            .and_then(|total| total.checked_add(u128::from(!exact)))
            .and_then(|total| i64::try_from(total).ok())
            .map(i64::unsigned_abs)
            .ok_or_else(too_much)
    }
}

/// The exponents of 10 and 2 in the factor that a suffix stands for.
fn scale(suffix: &str) -> Option<(i64, u32)> {
    Some(match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            (exponent.parse::<i32>().ok()?.into(), 0)
        }
    })
}

fn malformed() -> Problem {
    Problem::new("is not a Kubernetes quantity; expected one such as 100m, 0.5 or 128Mi")
}

fn too_much() -> Problem {
    Problem::new("is too much; expected a quantity within 64 bits")
}
