//! What a unit does with frames, one by one, without other processes.

use super::code::State;
use super::fetch::Fetch;
use super::*;
use crate::capsule::Capsule;
use samite_engines::Trap;
use samite_fabric::{Config, Identity};
use std::sync::Weak;
use std::sync::atomic::AtomicU32;

/// A unit whose frames are made by hand.
struct Bench {
    fabric: Fabric,
    runtime: Arc<Runtime>,
}

impl Bench {
    fn new() -> Bench {
        let fabric = Fabric::alone(Identity::by_hand("bench"), Config::default()).unwrap();
        let me = Life {
            peer: fabric.me(),
            incarnation: fabric.incarnation(),
        };
        let runtime = Arc::new(Runtime::new(me, 0, vec![me, Bench::other()]));
        let bench = Bench { fabric, runtime };
        bench.runtime.work(&bench.fabric); // It follows membership once.
        bench
    }

    /// A unit of the job that is not there: what is sent to it is lost.
    fn other() -> Life {
        Life {
            peer: PeerId(7),
            incarnation: 1,
        }
    }

    /// A call of another unit arrives.
    fn called(&self, id: u64, payload: &[u8]) {
        let head = head(Bench::other()).encode(frame::CALL);
        let frame = Body::Slice(payload);
        self.runtime.arrived(Bench::other(), id, &head, &frame);
    }

    fn with<R>(&self, f: impl FnOnce(&mut Work) -> R) -> R {
        f(&mut locked(&self.runtime.work))
    }
}

/// The head of a call with that origin.
fn head(origin: Life) -> Head {
    Head {
        entry: 0,
        limits: samite_engines::Limits::default(),
        slot: 1,
        origin,
        one_way: false,
        has_input: false,
    }
}

/// While code is on its way, a unit looks at the clock after each turn, which is no news for other
/// threads. When the fetch has ended, it does not look any more.
#[test]
fn a_unit_that_waits_for_code_tells_nobody() {
    const ID: u64 = 7;
    let bench = Bench::new();
    let due = run::coarse() + Duration::from_secs(600);
    bench.with(|work| {
        work.codes.entry(ID);
        work.codes.set(ID, State::Fetching(Fetch::default()));
        work.codes.due = due;
    });
    assert!(!bench.runtime.work(&bench.fabric));
    bench.with(|work| {
        assert_eq!(work.codes.due, due);
        work.not_asked(&bench.runtime, &bench.fabric, ID, Bench::other());
        assert!(!work.codes.has(ID));
        assert_eq!(work.codes.due, Duration::MAX);
    });
}

/// A task, and how often it was woken.
#[derive(Default)]
struct Task(AtomicU32);

impl std::task::Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// A call that was answered wakes its task while another thread runs a kernel.
#[test]
fn a_task_is_woken_while_a_kernel_runs() {
    let bench = Bench::new();
    let task = Arc::new(Task::default());
    let mut calls = locked(&bench.runtime.calls);
    let slot = calls.add(Bench::other(), Duration::ZERO).unwrap();
    assert!(
        calls
            .wake(slot, Waker::from(task.clone()), Duration::MAX)
            .is_ok()
    );
    drop(calls);
    bench.with(|_| {
        let reply = run::reply_head(slot);
        (bench.runtime).arrived(Bench::other(), 0, &reply, &Body::Slice(&[]));
        bench.runtime.work(&bench.fabric);
        assert_eq!(task.0.load(SeqCst), 1);
    });
}

/// A call that is late wakes its task while another thread runs a kernel.
#[test]
fn a_task_learns_that_it_is_late_while_a_kernel_runs() {
    let bench = Bench::new();
    let task = Arc::new(Task::default());
    let slot = locked(&bench.runtime.calls).add(Bench::other(), Duration::ZERO);
    let waker = Waker::from(task.clone());
    let late_at = run::coarse(); // It is late at once.
    let set = (bench.runtime).wake_at(&bench.fabric, slot.unwrap(), waker, late_at);
    assert!(set.is_ok());
    bench.with(|_| {
        bench.runtime.work(&bench.fabric);
        assert_eq!(task.0.load(SeqCst), 1);
    });
    let late_at = bench.runtime.late_at.load(Relaxed);
    assert_eq!(late_at, u64::MAX, "nobody awaits anything");
}

/// Code that was signed at its sender while it was on its way begins again, once: a sender that
/// changes it a second time is asked no more.
#[test]
fn code_that_changes_on_its_way_begins_again() {
    let bench = Bench::new();
    let capsule = Capsule::builder(["run"]).wasm([1; 20_000]).build().unwrap();
    let (id, bytes) = (capsule.hash().id(), capsule.bytes().to_vec());
    let whole = bytes.len() as u32;
    bench.runtime.loader.without_thread();
    bench.with(|work| {
        let sender = work.me; // What is sent to it is not lost.
        let (runtime, fabric) = (&bench.runtime, &bench.fabric);
        let send = |work: &mut Work, offset: u32, whole: u32, part: &[u8]| {
            let mut frame = Payload::from_slice(&frame::short(frame::CODE, [offset, whole]));
            frame.extend_from_slice(part);
            let arrived = Arrived {
                from: sender,
                kind: frame::CODE,
                word: id,
                bytes: frame,
            };
            work.code_arrived(runtime, fabric, &arrived);
            let entry = work.codes.get(id);
            entry.is_some_and(|entry| matches!(entry.state(), State::Fetching(_)))
        };
        let begin = |work: &mut Work| {
            let entry = work.codes.entry(id);
            entry.caller = Some(sender);
            work.codes.set(id, State::Fetching(Fetch::of(sender)));
        };
        begin(work);
        assert!(send(work, 0, whole - 96, &bytes[..8192]));
        assert!(
            send(work, 8192, whole, &bytes[8192..16384]),
            "it begins again"
        );
        assert!(send(work, 0, whole, &bytes[..8192]));
        assert!(send(work, 8192, whole, &bytes[8192..16384]));
        assert!(
            !send(work, 16384, whole, &bytes[16384..]),
            "all of it is there"
        );
        let entry = work.codes.get(id);
        assert!(entry.is_some_and(|entry| matches!(entry.state(), State::Loading)));
        begin(work);
        assert!(send(work, 0, whole - 96, &bytes[..8192]));
        assert!(send(work, 8192, whole, &bytes[8192..16384]));
        assert!(send(work, 0, whole, &bytes[..8192]));
        assert!(
            !send(work, 8192, whole - 96, &bytes[8192..16384]),
            "once is enough"
        );
    });
}

/// Calls that find no room are told at the next turn, although many wait that came before.
#[test]
fn refused_calls_do_not_wait_for_others() {
    let bench = Bench::new();
    let payload = vec![0; 60_000];
    for _ in 0..3 {
        let before = locked(&bench.runtime.inbox).calls.cost();
        for _ in 0..100 {
            bench.called(1, &payload);
        }
        let (waiting, refused) = {
            let inbox = locked(&bench.runtime.inbox);
            (inbox.calls.cost(), inbox.refused.cost())
        };
        assert!(waiting >= before && refused > 0);
        bench.with(|work| bench.runtime.refuse(work, &bench.fabric));
        let inbox = locked(&bench.runtime.inbox);
        assert_eq!(inbox.refused.cost(), 0);
        assert!(waiting - inbox.calls.cost() <= TAKEN as u64 * 60_200);
    }
}

/// Parked calls count until they run: whose code has come makes no room for more of them.
#[test]
fn parked_calls_count_until_they_run() {
    let bench = Bench::new();
    let payload = [0; 60_000];
    bench.with(|work| {
        let park = |work: &mut Work, id| {
            work.codes.entry(id);
            work.codes.set(id, State::Loading);
            let before = work.counters.misses;
            for _ in 0..600 {
                let mut bytes = Payload::from_slice(&head(Bench::other()).encode(frame::CALL));
                bytes.extend_from_slice(&payload);
                let arrived = Arrived {
                    from: Bench::other(),
                    kind: frame::CALL,
                    word: id,
                    bytes,
                };
                work.take(&bench.runtime, &bench.fabric, arrived);
            }
            work.counters.misses - before
        };
        let most = park(work, 1);
        assert!((60..600).contains(&most), "{most}");
        work.loaded_here(1, Err("refused".into()));
        assert_eq!(park(work, 2), 0);
        let next = |work: &mut Work| work.next_own().map(|arrived| arrived.word);
        assert_eq!(next(work), Some(1));
        assert_eq!(park(work, 2), 1);
        work.loaded_here(2, Err("refused".into()));
        let waited = std::iter::from_fn(|| next(work)).count() as u64;
        assert_eq!((waited, work.own_bytes), (most, 0));
        assert_eq!(park(work, 3), most);
    });
}

/// A prefetch whose code is on its way is parked as one of the unit that has passed it on: that one
/// has the code, and the frame is charged to it.
#[test]
fn who_passes_a_prefetch_on_has_the_code() {
    const ID: u64 = 7;
    let bench = Bench::new();
    bench.with(|work| {
        work.codes.entry(ID);
        work.codes.set(ID, State::Loading);
        let arrived = Arrived {
            from: Bench::other(),
            kind: frame::PREFETCH,
            word: ID,
            bytes: Payload::from_slice(&head(work.me).encode(frame::PREFETCH)),
        };
        work.take(&bench.runtime, &bench.fabric, arrived);
        let entry = work.codes.entry(ID);
        assert_eq!(entry.parked[0].1.from, Bench::other());
        assert_eq!(entry.holders, [Bench::other()]);
    });
}

/// What a function owns, and whether the unit could work when it was dropped.
struct Owned(Weak<Runtime>, Arc<AtomicBool>);

impl Drop for Owned {
    fn drop(&mut self) {
        let runtime = self.0.upgrade();
        let is_free = runtime.is_none_or(|runtime| runtime.work.try_lock().is_ok());
        self.1.store(is_free, SeqCst);
    }
}

/// A function that is defined anew is dropped without a lock, also if calls have used it.
#[test]
fn functions_are_dropped_without_a_lock() {
    let fabric = Fabric::alone(Identity::by_hand("drops"), Config::default()).unwrap();
    let mobile = Mobile::new(&fabric).unwrap();
    let code = Capsule::of_function("owner", ["run"]).unwrap();
    let code = mobile.register(code).unwrap();
    for is_called in [false, true] {
        let was_free = Arc::new(AtomicBool::new(false));
        let owned = Owned(Arc::downgrade(mobile.runtime()), was_free.clone());
        let owner = Function::new(move |context, _| {
            let _ = &owned;
            context.reply(b"")
        });
        mobile.define("owner", owner);
        if is_called {
            mobile.call(0, &code, "run", &[]).unwrap().wait().unwrap();
        }
        mobile.define("owner", Function::new(|context, _| context.reply(b"")));
        assert!(was_free.load(SeqCst));
    }
}

/// Each definition decides anew about code that is not compiled yet: one job is left for each.
#[test]
fn definitions_leave_one_job_for_each_code() {
    let bench = Bench::new();
    bench.runtime.loader.without_thread();
    bench.with(|work| {
        let capsules = [1, 2, 3].map(|number| {
            let builder = Capsule::builder(["run"]).wasm([number; 16]);
            builder.build().unwrap()
        });
        for capsule in capsules {
            let id = capsule.hash().id();
            assert!(work.register(&bench.runtime, &bench.fabric, capsule, false));
            work.obtain(&bench.runtime, &bench.fabric, id);
        }
        for _ in 0..10 {
            drop(work.reconsider(&bench.runtime, &bench.fabric));
            assert_eq!(bench.runtime.loader.jobs(), 3);
        }
    });
}

/// Code that the system gave no thread for is not refused: the next call tries again.
#[test]
fn a_thread_that_is_missing_refuses_no_code() {
    let bench = Bench::new();
    let capsule = Capsule::builder(["run"]).wasm([1; 16]).build().unwrap();
    let id = capsule.hash().id();
    let no_threads = &bench.runtime.loader.has_no_threads;
    no_threads.store(true, SeqCst);
    bench.with(|work| assert!(work.register(&bench.runtime, &bench.fabric, capsule, false)));
    for _ in 0..2 {
        bench.called(id, &[]);
        bench.runtime.work(&bench.fabric);
        bench.runtime.work(&bench.fabric); // It is told that nothing was loaded.
        bench.with(|work| {
            let entry = work.codes.get(id).unwrap();
            assert!(matches!(entry.state(), State::Idle), "{:?}", entry.state());
            assert!(entry.parked.is_empty());
        });
    }
    no_threads.store(false, SeqCst);
    bench.runtime.loader.without_thread();
    bench.called(id, &[]);
    bench.runtime.work(&bench.fabric);
    assert_eq!(bench.runtime.loader.jobs(), 1);
}

/// Much code of one unit is refused while it is compiled, and leaves room for that of others.
#[test]
fn code_of_one_unit_is_bounded_while_it_is_compiled() {
    let bench = Bench::new();
    bench.runtime.loader.without_thread();
    bench.with(|work| {
        let mut calls = |from: Life, number: u8| {
            let builder = Capsule::builder(["run"]).wasm([number; 1_000_000]);
            let capsule = builder.build().unwrap();
            let id = capsule.hash().id();
            assert!(work.register(&bench.runtime, &bench.fabric, capsule, false));
            let arrived = Arrived {
                from,
                kind: frame::CALL,
                word: id,
                bytes: Payload::from_slice(&head(from).encode(frame::CALL)),
            };
            work.park(&bench.runtime, &bench.fabric, head(from), arrived);
            matches!(work.codes.get(id).unwrap().state(), State::Loading)
        };
        let loading = (0..40)
            .filter(|number| calls(Bench::other(), *number))
            .count();
        assert_eq!(loading as u64, CODE_BYTES / 4 / 1_000_600);
        let another = Life {
            peer: PeerId(8),
            incarnation: 1,
        };
        assert!(calls(another, 100));
        // A call of the other unit has code loaded for which the first one has no room.
        const ID: u64 = 7;
        let me = work.me;
        for (from, expected) in [(Bench::other(), false), (another, true)] {
            let arrived = Arrived {
                from,
                kind: frame::CALL,
                word: ID,
                bytes: Payload::new(),
            };
            let entry = work.codes.entry(ID);
            entry.caller = Some(Bench::other());
            entry.parked.push((head(from), arrived));
            assert_eq!(work.codes.find_caller(ID, me, 1_000_000), expected);
            assert_eq!(work.codes.entry(ID).caller, Some(from));
        }
    });
}

/// That calls of a unit ran out of time is forgotten when its loss is seen, and counted no more of
/// those that run after it.
#[test]
fn timeouts_of_a_unit_that_was_lost_are_forgotten() {
    let bench = Bench::new();
    let (runtime, fabric) = (&bench.runtime, &bench.fabric);
    let capsule = Capsule::of_function("slow", ["run"]).unwrap();
    let id = capsule.hash().id();
    // Its number belongs to another process by now.
    let unit = Life {
        incarnation: runtime.me.incarnation + 1,
        ..runtime.me
    };
    let call_of = |work: &mut Work, origin: Life| {
        let arrived = Arrived {
            from: unit,
            kind: frame::CALL,
            word: id,
            bytes: Payload::from_slice(&head(origin).encode(frame::CALL)),
        };
        work.call(runtime, fabric, arrived);
    };
    let call = |work: &mut Work| call_of(work, unit);
    let counted_of = |work: &mut Work, origin: Life| {
        let from = unit;
        let entry = work.codes.get(id).unwrap();
        entry.timeouts_of(code::Source { from, origin }, Duration::from_millis(1))
    };
    let counted = |work: &mut Work| counted_of(work, unit);
    bench.with(|work| {
        let slow = Function::new(|_, _| Err(Trap::Time));
        work.functions.insert("slow".into(), slow);
        assert!(work.register(runtime, fabric, capsule, false));
        work.obtain(runtime, fabric, id);
        call(work);
        call(work);
        assert_eq!(counted(work), 2);
        // Origins that are no units are counted together: it gains nothing by inventing them.
        for incarnation in [77, 78, 79] {
            call_of(
                work,
                Life {
                    incarnation,
                    ..unit
                },
            );
        }
        assert_eq!(counted_of(work, code::Source::OTHERS), 3);
        work.units[1] = unit;
        work.changes = !work.changes;
        work.follow(runtime, fabric);
        assert_eq!(counted(work), 0);
        assert_eq!(counted_of(work, code::Source::OTHERS), 0);
        call(work);
        assert_eq!((counted(work), work.counters.traps), (0, 6));
    });
}

/// What waits for room at all peers together is bounded, and leaves room for each unit.
#[test]
fn frames_that_leave_are_bounded_in_all() {
    const UNITS: u32 = 100;
    let bench = Bench::new();
    let to = |peer| Life {
        peer: PeerId(peer),
        incarnation: 1,
    };
    bench.with(|work| {
        work.units = (0..UNITS).map(to).collect();
        let (reply, payload) = (run::reply_head(1), vec![0; 60_000]);
        let mut bytes = Vec::new();
        for peer in 0..UNITS {
            let before = work.out_bytes;
            for _ in 0..100 {
                let (runtime, fabric) = (&bench.runtime, &bench.fabric);
                work.wait_for_room(runtime, fabric, to(peer), 0, &reply, &payload);
            }
            bytes.push(work.out_bytes - before);
        }
        let part = outbox::OUT_ALL_MAX / u64::from(UNITS);
        assert!(bytes[..15].iter().all(|bytes| *bytes > 4_000_000));
        assert!(
            bytes[17..]
                .iter()
                .all(|bytes| (part - 60_200..=part).contains(bytes))
        );
        assert!(work.out_bytes <= 2 * outbox::OUT_ALL_MAX);
    });
}

/// What others have caused to be allocated for a code is given back when it is there, and a fetch
/// that is over leaves nothing behind.
#[test]
fn nothing_stays_of_calls_that_have_waited() {
    const ID: u64 = 7;
    let bench = Bench::new();
    bench.with(|work| {
        work.codes.entry(ID);
        work.codes.set(ID, State::Loading);
        for _ in 0..1000 {
            let from = Bench::other();
            let arrived = Arrived {
                from,
                kind: frame::CALL,
                word: ID,
                bytes: Payload::from_slice(&head(from).encode(frame::CALL)),
            };
            work.take(&bench.runtime, &bench.fabric, arrived);
        }
        assert_eq!(work.codes.held.len(), 1);
        work.loaded_here(ID, Err("\u{fffd}".repeat(1 << 20)));
        let entry = work.codes.get(ID).unwrap();
        assert_eq!((entry.parked.capacity(), entry.holders.capacity()), (0, 0));
        let State::Rejected(why) = entry.state() else {
            panic!("{:?}", entry.state());
        };
        assert!((500..=512).contains(&why.capacity()), "{}", why.capacity());
        assert!(work.codes.held.is_empty());
        assert!(work.codes.forget(ID));
        work.ask_next(&bench.runtime, &bench.fabric, ID);
        assert!(work.codes.entries.is_empty());
    });
}

/// What a unit has called and waited for is dropped when it is lost, wherever it waits: it takes no
/// room from the next life. What others wait for, and what nobody waits for, stays.
#[test]
fn calls_of_a_lost_unit_are_dropped() {
    const MISSING: u64 = 9;
    let bench = Bench::new();
    let (runtime, fabric) = (&bench.runtime, &bench.fabric);
    // Its number belongs to another process by now.
    let unit = Life {
        incarnation: runtime.me.incarnation + 1,
        ..runtime.me
    };
    let frame = |origin: Life, one_way: bool| {
        let head = Head {
            one_way,
            ..head(origin)
        };
        head.encode(frame::CALL)
    };
    let kinds = [
        frame(unit, false),
        frame(unit, true),
        frame(Bench::other(), false),
    ];
    for bytes in kinds.iter().cycle().take(3 * 40) {
        runtime.arrived(unit, MISSING, bytes, &Body::Slice(&[]));
    }
    bench.with(|work| {
        for bytes in &kinds {
            let arrived = Arrived {
                from: unit,
                kind: frame::CALL,
                word: MISSING,
                bytes: Payload::from_slice(bytes),
            };
            let (head, _) = Head::decode(bytes).unwrap();
            work.codes.entry(MISSING);
            work.codes
                .set(MISSING, State::Fetching(Fetch::of(Bench::other())));
            work.park(runtime, fabric, head, arrived);
        }
        work.fill(&mut locked(&runtime.inbox));
        assert_eq!(work.codes.entry(MISSING).parked.len(), 3);
        let waits = |work: &Work| {
            work.batch.len() as u64 + locked(&runtime.inbox).calls.cost() / (24 + EACH)
        };
        assert_eq!(waits(work), 120);
        work.units[1] = unit;
        work.changes = !work.changes;
        work.follow(runtime, fabric);
        assert_eq!(waits(work), 80);
        let entry = work.codes.entries.get(&MISSING);
        assert!(entry.is_none_or(|entry| entry.parked.len() < 3));
    });
}
