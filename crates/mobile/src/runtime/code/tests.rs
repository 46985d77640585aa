use super::*;
use crate::capsule::Processor;
use ed25519_dalek::SigningKey;

fn capsule(number: u8) -> Capsule {
    let builder = Capsule::builder(["run"]).elf(Processor::HERE, vec![number; 4_000_000]);
    builder.build().unwrap()
}

/// 16 capsules fit. The least recently used one goes, and none that the program has
/// registered, which do not count.
#[test]
fn the_least_recently_used_code_is_dropped() {
    let (mut codes, policy) = (Codes::default(), Policy::default());
    let capsules: Vec<_> = (0..20).map(capsule).collect();
    let ids: Vec<_> = capsules.iter().map(|capsule| capsule.hash().id()).collect();
    for capsule in &capsules[17..] {
        assert!(codes.keep(capsule.clone(), true, &policy));
    }
    for capsule in &capsules[..16] {
        assert!(codes.keep(capsule.clone(), false, &policy));
    }
    assert!(ids.iter().all(|id| codes.has(*id) || *id == ids[16]));
    assert!(codes.get(ids[0]).is_some());
    assert!(codes.keep(capsules[16].clone(), false, &policy));
    let gone: Vec<_> = (0..20).filter(|at| !codes.has(ids[*at])).collect();
    assert_eq!(gone, [1]);
    // One that is registered now makes room for another.
    assert!(codes.keep(capsules[2].clone(), true, &policy));
    assert!(codes.keep(capsules[1].clone(), false, &policy));
    assert!(ids.iter().all(|id| codes.has(*id)));
    // All that was counted is given back.
    assert!(ids.iter().all(|id| codes.forget(*id)));
    assert_eq!((codes.bytes, codes.parked), (0, 0));
}

/// One unit does not take the places of calls of others.
#[test]
fn parked_calls_are_bounded_for_each_unit() {
    let arrived = |peer| Arrived {
        from: Life {
            peer: samite_fabric::PeerId(peer),
            incarnation: 1,
        },
        kind: crate::frame::CALL,
        word: 1,
        bytes: crate::runtime::Payload::from_elem(0, 60_000),
    };
    let mut codes = Codes::default();
    let mut parked = Vec::new();
    for peer in 0..6 {
        while codes.may_park(&arrived(peer)).is_ok() {
            parked.push(arrived(peer));
        }
        let least = (INBOX_MAX / 4 * u64::from(peer + 1)).min(INBOX_MAX) - 4 * 60_200;
        assert!(codes.parked > least, "{peer}: {}", codes.parked);
    }
    codes.unpark(&parked);
    assert_eq!((codes.parked, codes.parked_from.len()), (0, 0));
}

/// Code that is being compiled is not dropped: there is no room for more than fits beside it.
#[test]
fn code_on_its_way_is_bounded() {
    let (mut codes, policy) = (Codes::default(), Policy::default());
    let capsules: Vec<_> = (0..16).map(capsule).collect();
    for (at, capsule) in capsules.iter().enumerate() {
        assert!(codes.keep(capsule.clone(), false, &policy));
        if at < 8 {
            codes.set(capsule.hash().id(), State::Loading);
        }
    }
    assert!(codes.evict(0, 24_000_000));
    assert!(!codes.evict(0, 36_000_000));
    let loading = |codes: &Codes| codes.entries.values().count();
    assert_eq!(loading(&codes), 8);
}

/// Much code that is small makes room for one that is not, and each entry is looked at about
/// once. Code that was used since has its place behind others.
#[test]
fn small_codes_make_room_in_a_few_looks() {
    const SMALL: u64 = 2_000;
    const ONE: usize = 32_000;
    let (mut codes, policy) = (Codes::default(), Policy::default());
    let mut ids = Vec::new();
    for number in 0..SMALL {
        let mut code = vec![0; ONE];
        code[..8].copy_from_slice(&number.to_le_bytes());
        let builder = Capsule::builder(["run"]).elf(Processor::HERE, code);
        let capsule = builder.build().unwrap();
        ids.push(capsule.hash().id());
        assert!(codes.keep(capsule, false, &policy));
        codes.set(ids[number as usize], State::Rejected("no".into()));
    }
    assert_eq!((codes.entries.len(), codes.looks), (SMALL as usize, 0));
    for id in &ids[..100] {
        assert!(codes.get(*id).is_some());
    }
    assert!(codes.evict(0, CODE_BYTES / 2));
    assert!(codes.looks < 100 + SMALL, "{} looks", codes.looks);
    for (at, id) in ids.iter().enumerate() {
        let is_there = codes.has(*id);
        assert!(is_there || (100..1_200).contains(&at), "{at}");
        assert!(!is_there || !(100..900).contains(&at), "{at}");
    }
    // If nothing can go, each is looked at once more, and no further code fits.
    for id in &ids {
        codes.set(*id, State::Loading);
    }
    let before = codes.looks;
    assert!(!codes.evict(0, CODE_BYTES));
    assert!(codes.looks - before <= codes.entries.len() as u64);
    assert_eq!(codes.order.len(), codes.entries.len());
}

/// A call that comes straight from its origin.
fn straight(unit: Life) -> Source {
    let (from, origin) = (unit, unit);
    Source { from, origin }
}

/// Timeouts are counted for each source of calls, and forgotten with the unit that sent them or
/// with the code.
#[test]
fn timeouts_end_with_their_unit() {
    let unit = |peer, incarnation| Life {
        peer: samite_fabric::PeerId(peer),
        incarnation,
    };
    let units = [unit(1, 1), unit(1, 2), unit(2, 1)];
    let mut codes = Codes::default();
    let run = Duration::from_secs(1);
    for id in [0, 7, u64::MAX] {
        codes.entry(id);
        for unit in units {
            codes.timed_out(id, straight(unit), run);
            codes.timed_out(id, straight(unit), run);
        }
    }
    codes.in_time(7, straight(units[0]));
    codes.forget_unit(units[1]);
    let mut counts = |id| {
        let entry = codes.get(id).unwrap();
        units.map(|unit| entry.timeouts_of(straight(unit), run))
    };
    assert_eq!(
        [0, 7, u64::MAX].map(&mut counts),
        [[2, 0, 2], [0, 0, 2], [2, 0, 2]]
    );
    assert!(codes.forget(7));
    for unit in [units[0], units[2]] {
        assert_eq!(codes.timed.range((unit, 0)..=(unit, u64::MAX)).count(), 2);
        codes.forget_unit(unit);
    }
    assert!(codes.timed.is_empty());
    assert!(
        codes
            .entries
            .values()
            .all(|entry| entry.timeouts.capacity() == 0)
    );
    // What a unit passes on for others says nothing about its own calls, and is bounded.
    let passed_on = |origin| Source {
        from: units[0],
        origin: unit(origin, 1),
    };
    for origin in 10..1000 {
        codes.timed_out(0, passed_on(origin), run);
    }
    let entry = codes.get(0).unwrap();
    assert_eq!(entry.timeouts_of(straight(units[0]), run), 0);
    assert_eq!(entry.timeouts_of(passed_on(10), run), 1);
    assert_eq!(entry.timeouts.len(), TIMEOUTS_KEPT + 1);
    // So many origins are not a way around the count: those that are not listed have one together,
    // which ends with a call of theirs that is in time.
    assert_eq!(entry.timeouts_of(passed_on(999), run), 990 - 64);
    assert_eq!(entry.timeouts_of(passed_on(2000), run), 990 - 64);
    codes.in_time(0, passed_on(2000));
    let entry = codes.get(0).unwrap();
    assert_eq!(entry.timeouts_of(passed_on(999), run), 0);
    assert_eq!(entry.timeouts_of(passed_on(10), run), 1);
    codes.forget_unit(units[0]);
    assert!(codes.timed.is_empty());
}

/// The sets hold those that are in their states, however these change.
#[test]
fn sets_follow_the_states() {
    let mut codes = Codes::default();
    let states: [fn() -> State; 4] = [
        || State::Fetching(Fetch::default()),
        || State::Loading,
        || State::Rejected("no".into()),
        || State::Idle,
    ];
    samite_testkit::fuzz::rounds(
        "runtime::code::tests::sets_follow_the_states",
        1_000,
        |_, random| {
            let id = random.u64(..8);
            codes.entry(id);
            match random.usize(..5) {
                4 => assert!(codes.forget(id)),
                state => assert!(codes.set(id, states[state]()).is_some()),
            }
            let is_fetched = |entry: &Entry| matches!(entry.state, State::Fetching(_));
            let entries = codes.entries.iter();
            let mut fetched: Vec<u64> = (entries.filter(|(_, entry)| is_fetched(entry)))
                .map(|(id, _)| *id)
                .collect();
            fetched.sort_unstable();
            assert!(codes.fetching.iter().eq(&fetched));
        },
    );
}

/// What others send replaces no signature that is trusted here, nor one by another of the kind.
#[test]
fn a_trusted_signature_is_kept() {
    let keys = [1, 2, 3].map(|byte| SigningKey::from_bytes(&[byte; 32]));
    let [trusted, one, two] = keys.map(|key| capsule(1).sign(&key).unwrap());
    let policy = Policy {
        keys: vec![*trusted.signer().unwrap()],
        ..Policy::default()
    };
    let mut codes = Codes::default();
    let id = trusted.hash().id();
    let steps = [
        (&capsule(1), false, None),
        (&one, false, one.signer()),
        (&two, false, one.signer()),
        (&two, true, two.signer()),
        (&trusted, false, trusted.signer()),
        (&one, false, trusted.signer()),
        (&capsule(1), true, trusted.signer()),
    ];
    for (at, (capsule, pinned, expected)) in steps.into_iter().enumerate() {
        assert!(codes.keep(capsule.clone(), pinned, &policy));
        let kept = codes.get(id).and_then(|entry| entry.capsule.clone());
        assert_eq!(kept.unwrap().signer(), expected, "step {at}");
    }
}
