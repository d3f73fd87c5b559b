use std::time::Duration;

use proptest::prelude::*;

use crate::plan::parse_duration;

#[test]
fn durations_that_go_accepts_are_accepted_to_the_nanosecond() {
    let accepted: &[(&str, u64)] = &[
        ("0", 0),
        ("+0", 0),
        ("-0", 0),
        ("-0s", 0),
        ("5s", 5_000_000_000),
        ("+5s", 5_000_000_000),
        ("30s", 30_000_000_000),
        ("1478s", 1_478_000_000_000),
        ("5.0s", 5_000_000_000),
        ("5.6s", 5_600_000_000),
        ("5.s", 5_000_000_000),
        (".5s", 500_000_000),
        ("1.004s", 1_004_000_000),
        ("100.00100s", 100_001_000_000),
        ("10ns", 10),
        ("11us", 11_000),
        ("12µs", 12_000),
        ("12μs", 12_000),
        ("13ms", 13_000_000),
        ("15m", 900_000_000_000),
        ("16h", 57_600_000_000_000),
        ("3h30m", 12_600_000_000_000),
        ("10.5s4m", 250_500_000_000),
        ("1h2m3s4ms5us6ns", 3_723_004_005_006),
        ("39h9m14.425s", 140_954_425_000_000),
        ("52763797000ns", 52_763_797_000),
        ("0.3333333333333333333h", 1_200_000_000_000),
        ("9007199254740993ns", 9_007_199_254_740_993),
        ("9223372036854775807ns", i64::MAX as u64),
        ("9223372036854775.807us", i64::MAX as u64),
        ("9223372036s854ms775us807ns", i64::MAX as u64),
        ("0.100000000000000000000h", 360_000_000_000),
        ("0.830103483285477580700h", 2_988_372_539_827),
        ("00000000000000000000000001s", 1_000_000_000),
    ];
    for &(text, nanoseconds) in accepted {
        assert_eq!(
            parse_duration(text),
            Ok(Duration::from_nanos(nanoseconds)),
            "{text}"
        );
    }
}

#[test]
fn durations_that_go_refuses_are_refused() {
    let refused = [
        "",
        "3",
        "-",
        "+",
        "s",
        ".",
        "-.",
        ".s",
        "+.s",
        "1d",
        "3000",
        "1 s",
        " 1s",
        "1s ",
        "1S",
        "00",
        "+00",
        "1s2",
        "1.2.3s",
        "--1s",
        "+-1s",
        "1e3s",
        "1µ",
        "1ﬀs",
        "\u{85}\u{85}",
        "hello",
        "9223372036854775808ns",
        "9223372036854775.808us",
        "9223372036854ms775us808ns",
        "3000000h",
        "18446744073709551616ns",
        "99999999999999999999999s",
        "2562047h48m",
    ];
    for text in refused {
        assert!(
            parse_duration(text).is_err(),
            "{text:?} is {:?}",
            parse_duration(text)
        );
    }
}

#[test]
fn a_negative_duration_is_refused() {
    for text in ["-1s", "-0.5h", "-1ns", "-9223372036854775808ns"] {
        let problem = parse_duration(text).unwrap_err().to_string();
        assert!(problem.starts_with("is negative"), "{text} {problem}");
    }
}

/// The duration as Go's `Duration.String` writes it.
fn as_go_writes(nanoseconds: u64) -> String {
    let fraction = |whole: u64, rest: u64, width: usize| {
        let digits = format!("{rest:0width$}");
        format!("{whole}.{digits}")
            .trim_end_matches('0')
            .trim_end_matches('.')
            .to_owned()
    };
    match nanoseconds {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanoseconds}ns"),
        1_000..1_000_000 => fraction(nanoseconds / 1_000, nanoseconds % 1_000, 3) + "µs",
        1_000_000..1_000_000_000 => {
            fraction(nanoseconds / 1_000_000, nanoseconds % 1_000_000, 6) + "ms"
        }
        _ => {
            let total = nanoseconds / 1_000_000_000;
            let seconds = fraction(total % 60, nanoseconds % 1_000_000_000, 9) + "s";
            match (total / 3600, total / 60 % 60) {
                (0, 0) => seconds,
                (0, minutes) => format!("{minutes}m{seconds}"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn durations_that_go_writes_are_accepted(nanoseconds in 0..=i64::MAX as u64, shift in 0_u32..60) {
        let nanoseconds = nanoseconds >> shift;
        let text = as_go_writes(nanoseconds);
        prop_assert_eq!(parse_duration(&text), Ok(Duration::from_nanos(nanoseconds)), "{}", text);
    }

    #[test]
    fn no_text_of_a_durations_characters_panics(text in "[-+0-9.nuµmsh ]{0,40}") {
        if let Ok(duration) = parse_duration(&text) {
            prop_assert!(duration.as_nanos() <= i64::MAX as u128);
        }
    }
}
