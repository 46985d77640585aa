//! Two workers of one process, over TCP on the loopback interface.

use samite_testkit::require;
use samite_ucx::{EndpointId, Error, MESSAGE_MAX, Sent, Settings, Worker};

/// Two workers, each with a way to the other; `None` where UCX is missing.
fn pair(test: &str) -> Option<[(Worker, EndpointId); 2]> {
    let settings = Settings {
        transports: Some("tcp".into()),
        devices: Some("lo".into()),
    };
    let first = Worker::new(&settings);
    let is_missing = matches!(first, Err(Error::Missing(_)));
    if !require(test, !is_missing, "install libucx0: ci/packages.txt") {
        return None;
    }
    let mut first = first.expect("a worker");
    let mut second = Worker::new(&settings).expect("a worker");
    let there = first.connect(second.address()).expect("a way");
    let back = second.connect(first.address()).expect("a way");
    Some([(first, there), (second, back)])
}

fn body_of(number: usize) -> Vec<u8> {
    let len = (number * 7919) % (MESSAGE_MAX - 8);
    (0..len).map(|at| (at * 31 + number) as u8).collect()
}

/// Messages of all lengths arrive whole, in both directions, while little is under way at once.
#[test]
fn messages_arrive_whole() {
    const COUNT: usize = 500;
    let Some(mut workers) = pair("messages_arrive_whole") else {
        return;
    };
    let mut sent = [0; 2];
    let mut arrived = [(); 2].map(|()| std::collections::BTreeSet::new());
    while arrived.iter().any(|numbers| numbers.len() < COUNT) {
        for side in 0..2 {
            let (worker, way) = &mut workers[side];
            if sent[side] < COUNT {
                let number = sent[side];
                let body = body_of(number);
                let header = (number as u64).to_le_bytes();
                let write = |to: &mut [u8]| to.copy_from_slice(&body);
                match worker.send(
                    *way,
                    1 << 20,
                    &[&header[..3], &header[3..]],
                    body.len(),
                    write,
                ) {
                    Sent::Done => sent[side] += 1,
                    Sent::Full => {}
                    Sent::Broken => panic!("the other one is gone"),
                }
            }
            worker.progress();
            let mut numbers = Vec::new();
            while let Some(number) = worker.next(|header, body| {
                let number = u64::from_le_bytes(header.try_into().expect("8 bytes")) as usize;
                assert!(body == body_of(number), "message {number}");
                number
            }) {
                numbers.push(number);
            }
            for number in numbers {
                assert!(arrived[side].insert(number), "message {number} came twice");
            }
        }
    }
}

/// Who has been told that it may sleep finds its descriptor readable when something has arrived.
#[test]
fn a_sleeper_is_woken() {
    use rustix::event::{PollFd, PollFlags, poll};
    let Some([(mut first, there), (mut second, _)]) = pair("a_sleeper_is_woken") else {
        return;
    };
    let descriptor = second.descriptor().expect("a descriptor");
    for number in 0..100_u8 {
        while first.send(there, 1 << 20, &[&[number]], 0, |_| ()) != Sent::Done {
            first.progress();
        }
        let mut found = None;
        while found.is_none() {
            // The message has left when nothing is under way any more.
            while first.progress() {}
            if second.arm() {
                let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
                // The first message connects, for which both have to make progress.
                let (tv_sec, tv_nsec) = if number == 0 { (0, 1_000_000) } else { (60, 0) };
                let most = rustix::event::Timespec { tv_sec, tv_nsec };
                let woken = poll(&mut fds, Some(&most)).expect("a poll");
                assert!(number == 0 || woken == 1, "message {number}");
            }
            while second.progress() {}
            found = second.next(|header, _| header[0]);
        }
        assert_eq!(found, Some(number));
    }
}

/// What cannot be sent is refused, and a full way accepts again once something has left.
#[test]
fn a_way_is_bounded() {
    let Some([(mut first, there), (mut second, _)]) = pair("a_way_is_bounded") else {
        return;
    };
    let mut count = 0;
    while first.send(there, 1 << 20, &[&[1]], MESSAGE_MAX - 1, |_| ()) == Sent::Done {
        count += 1;
        assert!(count < 100_000, "nothing bounds it");
    }
    let mut arrived = 0;
    while arrived < count {
        first.progress();
        second.progress();
        while second.next(|_, _| ()).is_some() {
            arrived += 1;
        }
    }
    assert_eq!(first.send(there, 1 << 20, &[&[1]], 0, |_| ()), Sent::Done);
}

/// A worker that is gone is noticed by who sends to it.
#[test]
fn the_end_of_the_other_is_noticed() {
    let Some([(mut first, there), (mut second, back)]) = pair("the_end_of_the_other_is_noticed")
    else {
        return;
    };
    for _ in 0..2 {
        assert_eq!(first.send(there, 1 << 20, &[&[1]], 0, |_| ()), Sent::Done);
        while second.next(|_, _| ()).is_none() {
            first.progress();
            second.progress();
        }
    }
    assert_eq!(second.send(back, 1 << 20, &[&[2]], 0, |_| ()), Sent::Done);
    drop(second);
    while first.send(there, 1 << 20, &[&[3]], 0, |_| ()) != Sent::Broken {
        first.progress();
    }
    assert!(first.is_broken(there));
    first.close(there);
    assert!(first.is_broken(there));
}

/// A worker that ends at any step of another one's first contact ends: UCX has made an endpoint for
/// that one by itself, and would abort if its answer had not left. A process of its own does so.
#[test]
fn a_worker_ends_while_others_connect() {
    const CHILD: &str = "SAMITE_TEST_ENDS_EARLY";
    let name = "a_worker_ends_while_others_connect";
    if std::env::var_os(CHILD).is_none() {
        if pair(name).is_none() {
            return;
        }
        let mut child = std::process::Command::new(std::env::current_exe().expect("a path"));
        let child = child.args(["--exact", name]).env(CHILD, "1");
        let ended = child.output().expect("a process");
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{}: {said}", ended.status);
        let ran = String::from_utf8_lossy(&ended.stdout);
        return assert!(ran.contains("1 passed"), "{ran}");
    }
    let settings = Settings {
        transports: Some("tcp".into()),
        devices: Some("lo".into()),
    };
    for steps in (0..100).map(|round| round % 10) {
        let mut first = Worker::new(&settings).expect("a worker");
        let mut second = Worker::new(&settings).expect("a worker");
        let there = first.connect(second.address()).expect("a way");
        assert_eq!(first.send(there, 1 << 20, &[&[1]], 0, |_| ()), Sent::Done);
        // Until something of it is there.
        while !second.progress() {
            first.progress();
        }
        for _ in 0..steps {
            second.progress();
        }
        drop(second);
    }
}

/// Settings that fit no network are refused with a sentence.
#[test]
fn wrong_settings_are_refused() {
    if pair("wrong_settings_are_refused").is_none() {
        return;
    }
    let settings = Settings {
        transports: Some("tcp".into()),
        devices: Some("no-such-device".into()),
    };
    let error = Worker::new(&settings).expect_err("no such device");
    assert!(error.to_string().contains("ucx_info -d"), "{error}");
}
