use super::*;
use crate::PeerId;
use crate::transport::{Change, Sink};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What happened to services, in order.
type Log = Arc<Mutex<Vec<(&'static str, &'static str)>>>;

struct Noted {
    name: &'static str,
    log: Log,
    next: Duration,
    worked: bool,
    news: Arc<AtomicBool>,
}

impl Noted {
    fn new(name: &'static str, log: &Log, next: Duration) -> Noted {
        Noted {
            name,
            log: log.clone(),
            next,
            worked: false,
            news: Arc::default(),
        }
    }

    fn note(&self, what: &'static str) {
        self.log.lock().unwrap().push((self.name, what));
    }
}

impl Service for Noted {
    fn name(&self) -> &'static str {
        self.name
    }
    fn owns(&self) -> Vec<Owned> {
        let notes = self.log.lock().unwrap().len() as u64;
        vec![Owned::count("notes", notes), Owned::bytes("memory", 7)]
    }
    fn poll(&mut self) -> bool {
        self.worked = self.news.swap(false, Ordering::AcqRel);
        self.note("polled"); // What arrives after this note is for the next poll.
        self.worked
    }
    fn next(&mut self) -> Duration {
        match self.worked {
            true => Duration::ZERO,
            false => self.next,
        }
    }
    fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }
    fn peers_lost(&mut self, lost: Lost<'_>) {
        let nobody = Life {
            peer: PeerId(5),
            incarnation: 1,
        };
        assert!(lost.has(nobody));
        self.note("told");
    }
    fn end(&mut self) {
        self.note("ended");
    }
}

fn alone() -> Fabric {
    Fabric::alone(identity(), Config::default()).unwrap()
}

#[test]
fn services_take_turns_and_end_the_last_one_first() {
    let (fabric, log) = (alone(), Log::default());
    // The first service always has more to do; the second is polled all the same.
    let mut busy = Noted::new("busy", &log, Duration::ZERO);
    let mut other = Noted::new("other", &log, Duration::MAX);
    let mut turns = 0;
    let ran = Host::default().run(&fabric, &mut [&mut busy, &mut other], |_| {
        turns += 1;
        turns <= 2
    });
    ran.unwrap();
    let expected = [
        ("busy", "told"),
        ("other", "told"),
        ("busy", "polled"),
        ("other", "polled"),
        ("busy", "polled"),
        ("other", "polled"),
        ("other", "ended"),
        ("busy", "ended"),
    ];
    assert_eq!(*log.lock().unwrap(), expected);
}

/// Without the agent no loss is reported any more: what is kept of peers would stay forever.
#[test]
fn a_host_ends_with_its_agent() {
    let (fabric, log) = (alone(), Log::default());
    fabric.0.core().unwrap().engine.change(Change::AgentLost);
    let mut busy = Noted::new("busy", &log, Duration::ZERO);
    let mut turns = 0;
    let ran = Host::default().run(&fabric, &mut [&mut busy], |_| {
        turns += 1;
        turns <= 100
    });
    assert!(matches!(ran, Err(Error::AgentLost(_))), "{ran:?}");
    assert_eq!(log.lock().unwrap().last(), Some(&("busy", "ended")));
}

/// The agent's own process is preferred to one that uses its name.
#[test]
fn the_host_is_of_the_agents_process() {
    let info = |peer: u32, program: &str, pid: i32| PeerInfo {
        peer: PeerId(peer),
        incarnation: 1,
        identity: Identity::by_hand(program),
        pid,
    };
    let (name, agent) = (identity().program, 70);
    let peers = [
        info(0, "other", agent),
        info(1, &name, 71),
        info(2, &name, agent),
        info(3, &name, 72),
    ];
    let found = |peers: &[PeerInfo]| host_of(peers, agent).map(|info| info.peer.0);
    assert_eq!(found(&peers), Some(2));
    assert_eq!(found(&peers[..2]), Some(1));
    assert_eq!(found(&peers[..1]), None);
}

/// A service that asks the host again whenever it is asked what it owns, as a peer may endlessly.
struct Insatiable {
    fabric: Fabric,
    asked: Arc<AtomicUsize>,
}

impl Insatiable {
    fn ask(&self) {
        let me = Life {
            peer: self.fabric.me(),
            incarnation: self.fabric.incarnation(),
        };
        let asked = self
            .fabric
            .call(ServiceId::HOST, me, Duration::ZERO, |_| vec![0]);
        drop(asked.unwrap());
    }
}

impl Service for Insatiable {
    fn name(&self) -> &'static str {
        "insatiable"
    }
    fn owns(&self) -> Vec<Owned> {
        if self.asked.fetch_add(1, Ordering::Relaxed) < 100 {
            self.ask();
        }
        Vec::new()
    }
    fn poll(&mut self) -> bool {
        false
    }
    fn next(&mut self) -> Duration {
        Duration::MAX
    }
    fn has_news(&self) -> bool {
        false
    }
    fn peers_lost(&mut self, _: Lost<'_>) {}
    fn end(&mut self) {}
}

#[test]
fn who_asks_a_host_without_end_does_not_keep_it() {
    let fabric = alone();
    let mut host = Host {
        facts: Some(fabric.serve(ServiceId::HOST, INBOX)),
        ..Host::default()
    };
    let asked = Arc::default();
    let mut service = Insatiable {
        fabric: fabric.clone(),
        asked,
    };
    service.ask();
    for turn in 1..=3 {
        host.turn(&fabric, &mut [&mut service]);
        assert_eq!(service.asked.load(Ordering::Relaxed), turn);
    }
}

/// Another thread of a service has work for it: the host, which may be asleep, polls it.
#[test]
fn a_bell_has_a_service_polled() {
    let (fabric, log) = (alone(), Log::default());
    let mut waiting = Noted::new("waiting", &log, Duration::MAX);
    let (news, bell) = (waiting.news.clone(), fabric.bell(fabric.me()));
    let polled = |log: &Log| {
        let log = log.lock().unwrap();
        log.iter().filter(|(_, what)| *what == "polled").count()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while polled(&log) == 0 {
                std::thread::yield_now();
            }
            news.store(true, Ordering::Release);
            bell.nudge();
        });
        // The next poll takes it.
        let is_open = |_: &Fabric| polled(&log) < 2 || news.load(Ordering::Acquire);
        Host::default()
            .run(&fabric, &mut [&mut waiting], is_open)
            .unwrap();
    });
    assert!(!news.load(Ordering::Acquire));
}

/// A process that asks the host is told what each service owns at that time.
#[test]
fn a_host_says_what_it_hosts() {
    let (fabric, log) = (alone(), Log::default());
    let mut one = Noted::new("one", &log, Duration::MAX);
    let mut host = Host {
        facts: Some(fabric.serve(ServiceId::HOST, INBOX)),
        ..Host::default()
    };
    let me = Life {
        peer: fabric.me(),
        incarnation: fabric.incarnation(),
    };
    for notes in [2, 3] {
        let asked = fabric.call(ServiceId::HOST, me, fabric.deadline(), |_| vec![0]);
        let mut asked = asked.unwrap();
        host.turn(&fabric, &mut [&mut one]);
        let answer = asked.wait(fabric.deadline(), "an answer").unwrap();
        let facts: Vec<ServiceFacts> = postcard::from_bytes(&answer).unwrap();
        let owns = vec![Owned::count("notes", notes), Owned::bytes("memory", 7)];
        let name = "one".into();
        assert_eq!(facts, [ServiceFacts { name, owns }]);
    }
}

#[test]
fn an_agent_without_services_is_no_peer() {
    let (domain, budget) = ("nowhere-at-all".to_owned(), 0);
    let network = None;
    let config = AgentConfig {
        domain,
        budget,
        network,
    };
    host(&config, &[], || ()).unwrap();
}
