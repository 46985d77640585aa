use super::*;
use crate::PeerId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// What happened to services, in order.
type Log = Arc<Mutex<Vec<(&'static str, &'static str)>>>;

struct Noted {
    name: &'static str,
    log: Log,
    next: Duration,
    news: Arc<AtomicBool>,
}

impl Noted {
    fn new(name: &'static str, log: &Log, next: Duration) -> Noted {
        Noted {
            name,
            log: log.clone(),
            next,
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
        self.note("polled");
        self.news.swap(false, Ordering::AcqRel)
    }
    fn next(&mut self) -> Duration {
        self.next
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
    // The first one always has more to do: the second one is polled all the same.
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

/// Another thread of a service has something for it: the host, which may sleep, polls it.
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
        // It is taken by the poll that follows.
        let is_open = |_: &Fabric| polled(&log) < 2 || news.load(Ordering::Acquire);
        Host::default()
            .run(&fabric, &mut [&mut waiting], is_open)
            .unwrap();
    });
    assert!(!news.load(Ordering::Acquire));
}

/// Who asks the host is told what each service owns, at that time.
#[test]
fn a_host_says_what_it_hosts() {
    let (fabric, log) = (alone(), Log::default());
    let mut one = Noted::new("one", &log, Duration::MAX);
    let mut host = Host {
        facts: Some(fabric.serve(Number::HOST, INBOX)),
        ..Host::default()
    };
    let me = Life {
        peer: fabric.me(),
        incarnation: fabric.incarnation(),
    };
    for notes in [2, 3] {
        let asked = fabric.call(Number::HOST, me, fabric.deadline(), |_| vec![0]);
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
    host(&AgentConfig { domain, budget }, &[]).unwrap();
}
