use super::*;
use std::fs::File;
use std::path::Path;

/// Returns the orders that a file has.
fn orders_in(path: &Path) -> Vec<Order> {
    let (mut inbox, mut all) = (Inbox::default(), Vec::new());
    let Ok(mut file) = File::open(path) else {
        return all; // Its host has not begun.
    };
    while let (orders, true) = inbox.read_from(&mut file).unwrap() {
        all.extend(orders);
    }
    all
}

/// Hosts learn that the launcher stops before it does, also when they have not read yet what
/// they are to begin, which fills more than a pipe.
#[test]
fn hosts_know_that_the_launcher_is_stopped() {
    const LONG: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (files, names) = ([path("a"), path("b")], ["a", "b"]);
    let link = |(file, name): (&std::path::PathBuf, &str)| {
        let host = Host {
            name: name.to_owned(),
            address: name.to_owned(),
            command: ["sh".into(), "-c".into(), r#"exec cat > "$0""#.into()].into(),
            transports: None,
            devices: None,
        };
        let command = [host.command.clone(), vec![file.into()]].concat();
        let link = Link::start(&Host { command, ..host }).unwrap();
        Rc::new(RefCell::new(link))
    };
    let mut hosts = Hosts {
        links: files.iter().zip(names).map(link).collect(),
        ..Hosts::default()
    };
    let mut plan = Plan::new("job");
    plan.config = "x".repeat(LONG);
    let node = Node {
        host: 0,
        name: "a".into(),
        listen: "10.0.0.1".into(),
        join: None,
        secret: "a secret".into(),
    };
    let plan = Box::new(plan);
    // The other one waits for the agent of the first one.
    hosts.links[0]
        .borrow_mut()
        .order(&Order::Begin { plan, node });
    // Its host reads, from now on without delay.
    while std::fs::metadata(&files[0]).map_or(0, |file| file.len()) == 0 {
        std::thread::yield_now();
    }
    let wait_for_last = |expected: Order| {
        let until = Instant::now() + Duration::from_secs(20);
        for file in &files {
            let mut last = None;
            while last != Some(format!("{expected:?}")) {
                assert!(Instant::now() < until, "{last:?}, not {expected:?}");
                last = orders_in(file).last().map(|order| format!("{order:?}"));
            }
        }
    };
    hosts.hold(|| wait_for_last(Order::Hold(true)));
    wait_for_last(Order::Hold(false));
}
