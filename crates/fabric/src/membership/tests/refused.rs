//! Messages that break one rule each, sent to a machine that knows no other node. Each test begins
//! with a message that breaks none.

use super::super::State;
use super::super::message::{Message, NodeEntry, SlotEntry, Standing, encode};
use super::super::{Action, Departure, Event, Link, Membership, NodeId, NodeLife, Refusal};
use super::config;
use crate::Slot;
use samite_mem::PEERS_MAX;

const DOMAIN: u64 = 9;
const CALL: Link = Link::Out(1);

fn life(node: u32, incarnation: u32) -> NodeLife {
    let node = NodeId::new(node).unwrap();
    NodeLife { node, incarnation }
}

fn hear(agent: &mut Membership, link: Link, message: &Message<'_>) -> Vec<Action> {
    let bytes = &message.encode();
    agent.on_event(Event::Message { link, bytes })
}

/// Node 5, in its life 3, that knows only the head.
fn member() -> Membership {
    let mut member = Membership::member(config(), "a", &[1], &[0]);
    member.on_event(Event::Tick { now: 0 });
    member.on_event(Event::Connected { link: CALL });
    let (domain, life, name) = (DOMAIN, life(5, 3), "head");
    let actions = hear(&mut member, CALL, &Message::Welcome { domain, life, name });
    assert_eq!(actions.first(), Some(&Action::Admitted { domain, life }));
    member
}

fn closes(actions: &[Action]) -> bool {
    actions
        .iter()
        .any(|action| matches!(action, Action::Close { .. }))
}

fn refusal(actions: &[Action]) -> Option<Refusal> {
    actions.iter().find_map(|action| match action {
        Action::Send { bytes, .. } => match Message::decode(bytes) {
            Ok(Message::Refused(refusal)) => Some(refusal),
            _ => None,
        },
        _ => None,
    })
}

fn node(epoch: u64, life: NodeLife, name: &str) -> Vec<u8> {
    let address = &[2];
    let standing = Standing::Member { name, address };
    encode(&NodeEntry {
        epoch,
        life,
        standing,
    })
}

fn gone(epoch: u64, life: NodeLife) -> Vec<u8> {
    let standing = Standing::Gone(Departure::Lost);
    encode(&NodeEntry {
        epoch,
        life,
        standing,
    })
}

#[test]
fn a_head_that_breaks_a_rule_is_not_heard_again() {
    let mut agent = member();
    let told = [node(1, life(2, 1), "b"), node(2, life(3, 0), "c")].concat();
    let (after, entries) = (0, &told[..]);
    assert!(!closes(&hear(
        &mut agent,
        CALL,
        &Message::Nodes { after, entries }
    )));
    let long = "x".repeat(256);
    let wrong = [
        ("begins elsewhere", 1, node(3, life(4, 0), "d")),
        ("an old epoch", 2, node(2, life(4, 0), "d")),
        ("twice a member", 2, node(3, life(2, 1), "b")),
        ("an old life", 2, node(3, life(2, 0), "b")),
        ("the end of an old life", 2, gone(3, life(2, 0))),
        ("too high a number", 2, node(3, life(16, 0), "d")),
        (
            "too high an incarnation",
            2,
            node(3, life(4, NodeLife::LAST + 1), "d"),
        ),
        ("another head", 2, node(3, life(0, 1), "d")),
        ("another life of the listener", 2, node(3, life(5, 4), "a")),
        ("a long name", 2, node(3, life(4, 0), &long)),
        ("no entry", 2, vec![255; 30]),
    ];
    for (what, after, entries) in wrong {
        let (mut agent, entries) = (agent.clone(), &entries);
        let actions = hear(&mut agent, CALL, &Message::Nodes { after, entries });
        let lost = actions.contains(&Action::HeadLost { finally: true });
        assert!(lost && closes(&actions), "{what}: {actions:?}");
        let later = agent.on_event(Event::Tick { now: 15 });
        let address = Box::new([0]);
        let calls_head = later.iter().any(|action| match action {
            Action::Connect {
                address: called, ..
            } => **called == *address,
            _ => false,
        });
        assert!(!calls_head, "{what}: {later:?}");
    }
}

fn slot(sequence: u64, slot: u32, incarnation: u32, identity: &[u8]) -> Vec<u8> {
    encode(&SlotEntry {
        sequence,
        slot: Slot(slot),
        incarnation,
        state: State::Alive,
        identity,
    })
}

#[test]
fn slots_follow_their_rules() {
    let mut agent = member();
    let (after, entries) = (0, &slot(1, 1, 2, &[7; 1024])[..]);
    assert!(!closes(&hear(
        &mut agent,
        CALL,
        &Message::Slots { after, entries }
    )));
    let wrong = [
        ("begins elsewhere", 0, slot(2, 1, 3, &[])),
        ("an old sequence", 1, slot(1, 1, 3, &[])),
        ("alive twice", 1, slot(2, 1, 2, &[])),
        ("an old life", 1, slot(2, 1, 1, &[])),
        ("no life", 1, slot(2, 2, 0, &[])),
        ("a life of another life", 1, slot(2, 1, (1 << 20) + 1, &[])),
        ("a long identity", 1, slot(2, 1, 3, &[7; 1025])),
        (
            "a slot that cannot be",
            1,
            slot(2, PEERS_MAX as u32, 3, &[]),
        ),
        ("no entry", 1, vec![255; 30]),
    ];
    for (what, after, entries) in wrong {
        let (mut agent, entries) = (agent.clone(), &entries);
        let actions = hear(&mut agent, CALL, &Message::Slots { after, entries });
        assert!(closes(&actions), "{what}: {actions:?}");
    }
}

#[test]
fn messages_have_their_place() {
    // Each of these entries is valid, but one message has too many of them.
    let entries = |count: u32| -> Vec<u8> {
        let all = 1..=count;
        all.flat_map(|number| slot(number.into(), number, 1, &[7; 1024]))
            .collect()
    };
    for (count, is_too_long) in [(15, false), (16, true)] {
        let (after, entries) = (0, &entries(count));
        let actions = hear(&mut member(), CALL, &Message::Slots { after, entries });
        assert_eq!(closes(&actions), is_too_long, "{count} entries");
    }
    let wrong = [
        Message::NodesSeen(0),
        Message::SlotsSeen(0),
        Message::Leave,
        Message::Welcome {
            domain: DOMAIN,
            life: life(5, 3),
            name: "head",
        },
        Message::Beat {
            unreachable: &[255],
        },
    ];
    for message in wrong {
        assert!(closes(&hear(&mut member(), CALL, &message)), "{message:?}");
    }
    // Messages that only the head may send.
    let mut agent = member();
    let entries = &node(1, life(6, 0), "b");
    hear(&mut agent, CALL, &Message::Nodes { after: 0, entries });
    let link = Link::In(1);
    agent.on_event(Event::Accepted { link });
    hear(&mut agent, link, &greeting(life(6, 0), life(5, 3)));
    let entries = &node(2, life(7, 0), "c");
    assert!(closes(&hear(
        &mut agent,
        link,
        &Message::Nodes { after: 1, entries }
    )));
    let link = Link::In(2);
    agent.on_event(Event::Accepted { link });
    let again = hear(&mut agent, link, &greeting(life(6, 0), life(5, 3)));
    assert_eq!(refusal(&again), Some(Refusal::Distrusted));
}

#[test]
fn a_welcome_is_to_a_member() {
    for life in [life(0, 0), life(5, NodeLife::LAST + 1)] {
        let mut member = Membership::member(config(), "a", &[1], &[0]);
        member.on_event(Event::Tick { now: 0 });
        let (domain, name) = (DOMAIN, "head");
        let actions = hear(&mut member, CALL, &Message::Welcome { domain, life, name });
        assert!(closes(&actions), "{actions:?}");
    }
}

fn greeting(from: NodeLife, to: NodeLife) -> Message<'static> {
    Message::Hello {
        version: 1,
        domain: DOMAIN,
        from,
        to,
        nodes: 0,
        slots: 0,
    }
}

/// Sends the greeting of a member with one difference.
fn altered(from: NodeLife, to: NodeLife, alter: impl Fn(&mut Message<'_>)) -> Message<'static> {
    let mut message = greeting(from, to);
    alter(&mut message);
    message
}

#[test]
fn callers_are_members_that_mean_who_they_call() {
    let mut head = Membership::head(config(), DOMAIN, "head", &[0]);
    let link = Link::In(1);
    head.on_event(Event::Accepted { link });
    let (version, name, address) = (1, "a", &[1][..]);
    hear(
        &mut head,
        link,
        &Message::Join {
            version,
            name,
            address,
        },
    );
    head.on_event(Event::Closed { link });
    let link = Link::In(2);
    head.on_event(Event::Accepted { link });
    let (one, zero) = (life(1, 0), NodeLife::HEAD);
    let call = |head: &Membership, message: Message<'_>| hear(&mut head.clone(), link, &message);
    let answer = call(&head, greeting(one, zero));
    assert!(refusal(&answer).is_none() && !closes(&answer), "{answer:?}");
    let version = altered(one, zero, |message| {
        if let Message::Hello { version, .. } = message {
            *version = 2;
        }
    });
    let domain = altered(one, zero, |message| {
        if let Message::Hello { domain, .. } = message {
            *domain = 8;
        }
    });
    for (message, expected) in [
        (version, Refusal::Version),
        (domain, Refusal::OtherDomain),
        (greeting(one, life(0, 1)), Refusal::OtherNode),
        (greeting(one, life(2, 0)), Refusal::OtherNode),
        (greeting(life(7, 0), zero), Refusal::NotYet),
        (greeting(life(1, 1), zero), Refusal::NotYet),
    ] {
        let answer = call(&head, message);
        assert_eq!(refusal(&answer), Some(expected));
        assert!(closes(&answer));
    }
    for future in [true, false] {
        let knows_what_has_not_happened = altered(one, zero, |message| {
            if let Message::Hello { nodes, slots, .. } = message {
                *(if future { nodes } else { slots }) = 99;
            }
        });
        let answer = call(&head, knows_what_has_not_happened);
        assert!(closes(&answer) && refusal(&answer).is_none());
    }
    for now in (0..100).step_by(10) {
        head.on_event(Event::Tick { now });
    }
    let link = Link::In(3);
    head.on_event(Event::Accepted { link });
    let answer = hear(&mut head, link, &greeting(one, zero));
    assert_eq!(refusal(&answer), Some(Refusal::Gone));
}

#[test]
fn an_answer_is_of_who_was_called() {
    let mut agent = member();
    let entries = &node(1, life(2, 1), "b");
    let actions = hear(&mut agent, CALL, &Message::Nodes { after: 0, entries });
    let link = Link::Out(2);
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, Action::Connect { .. }))
    );
    agent.on_event(Event::Connected { link });
    let (two, own) = (life(2, 1), life(5, 3));
    assert!(!closes(&hear(
        &mut agent.clone(),
        link,
        &greeting(two, own)
    )));
    let domain = altered(two, own, |message| {
        if let Message::Hello { domain, .. } = message {
            *domain = 8;
        }
    });
    for message in [
        domain,
        greeting(life(3, 1), own),
        greeting(life(2, 0), own),
        greeting(two, life(5, 2)),
        Message::Leave,
    ] {
        let mut agent = agent.clone();
        let actions = hear(&mut agent, link, &message);
        assert!(closes(&actions), "{message:?}");
        let later = agent.on_event(Event::Tick { now: 10 });
        let calls = later
            .iter()
            .any(|action| matches!(action, Action::Connect { .. }));
        assert!(
            calls,
            "{message:?} may have come from who has the address now: {later:?}"
        );
    }
}

#[test]
fn a_call_that_nobody_answers_is_made_again() {
    let mut agent = Membership::member(config(), "a", &[1], &[0]);
    let mut calls = Vec::new();
    for now in (0..200).step_by(10) {
        let actions = agent.on_event(Event::Tick { now });
        calls.extend(actions.into_iter().filter_map(|action| match action {
            Action::Connect { .. } => Some(now),
            _ => None,
        }));
    }
    assert_eq!(calls, [0, 80, 160]);
}

#[test]
fn who_is_told_that_its_domain_is_over_calls_the_head_no_more() {
    let mut agent = member();
    agent.on_event(Event::Closed { link: CALL });
    agent.on_event(Event::Tick { now: 15 });
    let link = Link::Out(2);
    agent.on_event(Event::Connected { link });
    let actions = hear(&mut agent, link, &Message::Refused(Refusal::OtherDomain));
    assert!(actions.contains(&Action::HeadLost { finally: true }));
    for now in (30..300).step_by(15) {
        assert_eq!(agent.on_event(Event::Tick { now }), []);
    }
}
