use proptest::prelude::*;

use crate::plan::quantity::Quantity;

fn units(text: &str) -> u64 {
    Quantity::parse(text)
        .and_then(|quantity| quantity.units())
        .unwrap_or_else(|e| panic!("{text} {e}"))
}

fn thousandths(text: &str) -> u64 {
    Quantity::parse(text)
        .and_then(|quantity| quantity.thousandths())
        .unwrap_or_else(|e| panic!("{text} {e}"))
}

#[test]
fn memory_is_in_bytes_rounded_up() {
    let expected: &[(&str, u64)] = &[
        ("0", 0),
        ("-0", 0),
        ("128", 128),
        ("+128", 128),
        ("1.", 1),
        (".5", 1),
        ("0.5Ki", 512),
        ("1Ki", 1 << 10),
        ("1.5Mi", 3 << 19),
        ("1Gi", 1 << 30),
        ("1Ti", 1 << 40),
        ("1Pi", 1 << 50),
        ("7Ei", 7 << 60),
        ("7.999999999999999999Ei", (8 << 60) - 1),
        ("1k", 1_000),
        ("129M", 129_000_000),
        ("1G", 1_000_000_000),
        ("1T", 1_000_000_000_000),
        ("1P", 1_000_000_000_000_000),
        ("9E", 9_000_000_000_000_000_000),
        ("1e3", 1_000),
        ("1E3", 1_000),
        ("12e+1", 120),
        ("1e-3", 1),
        ("1E-2147483648", 1),
        ("0e2147483647", 0),
        ("128974848000m", 128_974_848),
        ("1001m", 2),
        ("1n", 1),
        ("9223372036854775807", i64::MAX as u64),
        ("9223372036854775807000m", i64::MAX as u64),
        (
            "000000000000000000000000000000001.0000000000000000000000000000000",
            1,
        ),
        ("1.00000000000000000000000000000000000000000001", 2),
        ("0.1Ki", 103),
    ];
    for &(text, bytes) in expected {
        assert_eq!(units(text), bytes, "{text}");
    }
}

#[test]
fn cpu_is_in_thousandths_rounded_up() {
    let expected = [
        ("1", 1_000),
        ("0.5", 500),
        ("100m", 100),
        ("1u", 1),
        ("1500001u", 1_501),
        ("1n", 1),
        ("2k", 2_000_000),
        ("1.0005", 1_001),
    ];
    for (text, millis) in expected {
        assert_eq!(thousandths(text), millis, "{text}");
    }
}

#[test]
fn an_invalid_quantity_is_refused() {
    let refused = [
        "",
        ".",
        "+",
        "-",
        "Mi",
        "m",
        "1 ",
        " 1",
        "1 Mi",
        "1mi",
        "1MI",
        "1K",
        "1g",
        "1e",
        "1e3.5",
        "1Eii",
        "1GiB",
        "1GB",
        "1e3Mi",
        "1.1.1",
        "1..1",
        "--1",
        "+-1",
        "1kk",
        "0x10",
        "1,5",
        "٣",
        "1e99999999999",
        "inf",
        "NaN",
    ];
    for text in refused {
        assert!(Quantity::parse(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_negative_quantity_is_refused() {
    for text in ["-1", "-0.1n", "-1Mi"] {
        assert!(
            Quantity::parse(text)
                .unwrap_err()
                .to_string()
                .starts_with("is negative"),
            "{text}"
        );
    }
}

#[test]
fn a_quantity_beyond_64_bits_is_refused() {
    for text in [
        "9223372036854775808",
        "8Ei",
        "10E",
        "1e19",
        "1e2147483647",
        "9223372036854775807.1",
    ] {
        let quantity = Quantity::parse(text).unwrap();
        assert!(
            quantity
                .units()
                .unwrap_err()
                .to_string()
                .starts_with("is too much"),
            "{text}"
        );
    }
    assert!(
        Quantity::parse("9223372036854776")
            .unwrap()
            .thousandths()
            .is_err()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_quantity_is_its_number_times_its_suffix(
        whole in 0_u64..8_000,
        fraction in 0_u64..1_000_000_000,
        suffix in 0_usize..13,
    ) {
        let (suffix, factor) = [
            ("", 1_u128), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000),
            ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40),
            ("e0", 1), ("e1", 10), ("E2", 100), ("e+3", 1_000),
        ][suffix];
        let text = format!("{whole}.{fraction:09}{suffix}");
        let billionths = (u128::from(whole) * 1_000_000_000 + u128::from(fraction)) * factor;
        prop_assert_eq!(u128::from(units(&text)), billionths.div_ceil(1_000_000_000));
        prop_assert_eq!(u128::from(thousandths(&text)), billionths.div_ceil(1_000_000));
    }

    #[test]
    fn no_text_of_a_quantitys_characters_panics(text in "[-+0-9.eEinumkKMGTP]{0,40}") {
        if let Ok(quantity) = Quantity::parse(&text) {
            let _ = (quantity.units(), quantity.thousandths());
        }
    }
}
