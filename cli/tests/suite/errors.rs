//! Every error has a stable number, and `docs/errors.md` lists all of them.

use samite::pgas::array::ArrayError;
use samite::stage::SpaceError;
use samite::stage::file::FileError;
use samite::stage::method::graph::GraphError;
use samite::stage::protocol::Fault;
use samite::{ErrorCode, PeerId, config::ConfigError, dsm, mobile, pgas, stage};
use std::collections::BTreeMap;
use std::ops::Range;

/// The codes of each enum of errors, and the numbers that its crate may use.
const CODES: [(Range<u16>, &[ErrorCode]); 14] = [
    (1..100, samite::Error::CODES),
    (100..200, samite_mem::Error::CODES),
    (200..300, pgas::Error::CODES),
    (200..300, ArrayError::CODES),
    (300..500, stage::Error::CODES),
    (300..500, SpaceError::CODES),
    (300..500, GraphError::CODES),
    (300..500, FileError::CODES),
    (300..500, Fault::CODES),
    (500..600, dsm::Error::CODES),
    (600..700, mobile::Error::CODES),
    (600..700, samite::OperatorError::CODES),
    (700..800, samite_launch::Error::CODES),
    (800..900, ConfigError::CODES),
];

/// The rows of the table, by number: the name, and what happened.
fn documented() -> BTreeMap<u16, (&'static str, &'static str)> {
    let text = include_str!("../../../docs/errors.md");
    let mut rows = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        let [number, name, happened, _] = cells[..] else {
            panic!("four cells make a row: {line}");
        };
        let Ok(number) = number.trim().parse() else {
            assert_eq!(number.trim(), "code", "{line}");
            continue;
        };
        let there = rows.insert(number, (name.trim_matches('`'), happened));
        assert_eq!(there, None, "{number} has two rows");
    }
    rows
}

#[test]
fn the_table_and_the_code_have_the_same_numbers() {
    let mut rows = documented();
    for (range, codes) in CODES {
        for code in codes {
            let (number, name) = (code.number(), code.name());
            assert!(range.contains(&number), "{code} is not in {range:?}");
            // Taken out, so that a number that is used twice has no row the second time.
            let (documented, happened) = rows
                .remove(&number)
                .unwrap_or_else(|| panic!("{code} has no row of its own in docs/errors.md"));
            assert_eq!(documented, name, "{number}");
            assert!(!happened.trim().is_empty(), "{code}");
        }
    }
    assert!(rows.is_empty(), "no error has these numbers: {rows:?}");
}

#[test]
fn an_error_that_is_passed_on_keeps_its_code() {
    let lost = || samite::Error::PeerLost {
        peer: PeerId(3).into(),
        incarnation: 1,
    };
    assert_eq!(lost().code().to_string(), "fabric.PeerLost (1)");
    assert_eq!(pgas::Error::from(lost()).code(), lost().code());
    assert_eq!(stage::Error::from(lost()).code(), lost().code());
    let full = || ArrayError::NotInBlocks;
    assert_eq!(pgas::Error::from(full()).code(), full().code());
    let space = || SpaceError::ElementSize(3);
    assert_eq!(stage::Error::from(space()).code(), space().code());
    assert_eq!(FileError::from(space()).code(), space().code());
    assert_eq!(
        FileError::from(Fault::NotOpen).code(),
        Fault::NotOpen.code()
    );
}

/// A program whose `main` returns an error prints its `Debug`: the sentence, and the code.
#[test]
fn debug_is_a_sentence_with_the_code() {
    let name = Some("heat.1".into());
    let lost = samite::Error::PeerLost {
        peer: samite::Named::new(PeerId(3), name),
        incarnation: 1,
    };
    let sentence = "heat.1 died or left before the operation was complete [fabric.PeerLost (1)]";
    assert_eq!(format!("{lost:?}"), sentence);
    assert_eq!(format!("{:?}", pgas::Error::from(lost.clone())), sentence);
    assert_eq!(format!("{:?}", stage::Error::from(lost)), sentence);
    let fault = stage::Error::from(Fault::NotOpen);
    let text = format!("{fault:?}");
    assert_eq!(text, format!("{fault} [stream.NotOpen (425)]"));
    let unread = samite_launch::Error::ReadWorkflow {
        near: None,
        path: "flow.toml".into(),
        source: std::io::Error::other("no such file"),
    };
    assert_eq!(
        format!("{unread:?}"),
        "cannot read the workflow flow.toml: no such file [launch.ReadWorkflow (700)]"
    );
    let boxed: Box<dyn std::error::Error> = Box::new(ArrayError::OtherUnits);
    assert_eq!(
        format!("{boxed:?}"),
        "the arrays lie over different units; copy boxes with `get` and `put` [array.OtherUnits (259)]"
    );
}
