use super::{plan, refusal};
use crate::plan::Signal;

#[test]
fn a_signal_goes_by_its_name_or_number() {
    for text in ["SIGTERM", "TERM", "15"] {
        assert_eq!(text.parse(), Ok(Signal::TERM), "{text}");
    }
    for text in ["SIGRTMIN+3", "RTMIN+3", "37", "SIGRTMAX-27"] {
        assert_eq!(text.parse(), Ok(Signal::RTMIN_3), "{text}");
    }
    assert_eq!("SIGIOT".parse::<Signal>().map(Signal::number), Ok(6));
    assert_eq!("RTMIN+0".parse::<Signal>().map(Signal::number), Ok(34));
    assert_eq!("RTMAX".parse::<Signal>().map(Signal::number), Ok(64));
}

#[test]
fn an_invalid_signal_is_refused() {
    let refused = [
        "",
        "SIG",
        "sigterm",
        "SIGSIGTERM",
        "SIG15",
        "0",
        "65",
        "-1",
        "+15",
        "15 ",
        "99999999999",
        "RTMIN+31",
        "RTMIN+",
        "RTMIN+-1",
        "RTMAX-31",
        "RTMIN-1",
        "RTMAX+1",
    ];
    for text in refused {
        assert!(text.parse::<Signal>().is_err(), "{text}");
    }
}

#[test]
fn a_displayed_signal_can_be_parsed() {
    for number in 1..=64 {
        let signal = Signal::new(number).unwrap();
        assert_eq!(signal.number(), number);
        assert_eq!(signal.to_string().parse(), Ok(signal));
    }
    assert_eq!(Signal::TERM.to_string(), "SIGTERM");
    assert_eq!(Signal::RTMIN_3.to_string(), "SIGRTMIN+3");
    assert_eq!(
        (Signal::new(0), Signal::new(65), Signal::new(i32::MIN)),
        (None, None, None)
    );
}

#[test]
fn the_constants_have_linuxs_names() {
    let shown =
        [Signal::INT, Signal::QUIT, Signal::KILL, Signal::PWR].map(|signal| signal.to_string());
    assert_eq!(shown, ["SIGINT", "SIGQUIT", "SIGKILL", "SIGPWR"]);
}

#[test]
fn a_stop_signal_is_any_but_sigkill() {
    let plan = plan(&[("stop-signal.usher/web", "QUIT")]);
    assert_eq!(plan.container("web").stop_signal, Some(Signal::QUIT));
    assert!(refusal(&[("stop-signal.usher/web", "9")]).contains("is no stop signal; expected"));
    assert!(
        refusal(&[("stop-signal.usher/web", "SIGFOO")])
            .contains("\"SIGFOO\" is not a signal; expected")
    );
}
