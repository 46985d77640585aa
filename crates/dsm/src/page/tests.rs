//! A page in two threads, and in one.

use super::*;
use std::sync::atomic::AtomicBool;

const OWNER: Process = Process {
    peer: PeerId(3),
    incarnation: 7,
};

fn memory(bytes: u64) -> SharedBytes {
    let bytes = bytes_for(bytes);
    SharedBytes::adopt(vec![0_u64; (bytes / 8) as usize])
}

fn page(bytes: u64) -> Page {
    let page = Page::at(memory(bytes), bytes).expect("it is long enough");
    page.prepare(OWNER);
    page
}

fn commit(page: &Page, content: &[u8], tag: u64) -> Version {
    page.begin();
    assert!(!page.is_idle());
    page.commit(&Placed::Here(content), tag, 0)
}

#[test]
fn the_last_version_is_read_until_the_end() {
    let page = page(100);
    page.set_since(Version(8), 80);
    assert_eq!((page.since(), page.writer()), (Version(8), OWNER));
    let first = Found {
        version: Version(8),
        tag: 80,
        content: None,
    };
    assert_eq!(page.read(), Some(first.clone()));
    page.begin();
    assert!(!page.is_idle());
    assert_eq!(page.read(), Some(first));
    page.take_back();
    assert!(page.is_idle());
    let content = vec![3; 100];
    assert_eq!(commit(&page, &content, 90), Version(9));
    let found = page.read().expect("nobody writes");
    assert_eq!((found.version, found.tag), (Version(9), 90));
    assert_eq!(found.content, Some(Placed::Here(content)));
    assert!(!page.is_ended());
    assert_eq!(page.last(), None);
    assert_eq!(page.begin_to_end(), Version(9));
    assert!(page.is_ended());
    assert_eq!(page.last(), None);
    page.end(Version(9));
    assert_eq!(page.last(), Some(Version(9)));
}

#[test]
fn as_many_tags_are_known_as_there_is_room_for() {
    let page = page(0);
    page.set_since(Version(1), 10);
    for version in 2..=TAGS {
        commit(&page, &[], version * 10);
    }
    // The next one is overwritten as soon as it begins.
    assert_eq!(page.commit_of(Version(1)), None);
    for version in 2..=TAGS {
        assert_eq!(page.commit_of(Version(version)), Some((version * 10, 0)));
    }
}

#[test]
fn a_place_that_is_too_short_is_no_page() {
    let memory = memory(64);
    assert!(Page::at(memory.clone(), 64).is_some());
    assert!(Page::at(memory, 128).is_none());
}

#[test]
fn a_reader_never_sees_two_versions_mixed() {
    const BYTES: u64 = 512;
    let (page, is_over) = (page(BYTES), AtomicBool::new(false));
    page.set_since(Version(0), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for version in 1..200_000_u64 {
                let content = vec![version as u8; BYTES as usize];
                commit(&page, &content, !version);
            }
            is_over.store(true, Ordering::Release);
        });
        let (mut last, mut reads) = (Version::default(), 0_u64);
        while !is_over.load(Ordering::Acquire) {
            if let Some((version, tag)) = page.last_commit().filter(|found| found.0.0 > 0) {
                assert_eq!(tag, !version.0);
            }
            let Some(found) = page.read() else {
                continue;
            };
            reads += 1;
            assert!(found.version >= last);
            last = found.version;
            if let Some(content) = found.content {
                assert_eq!(found.tag, !last.0);
                let expected = vec![last.0 as u8; BYTES as usize];
                assert_eq!(content, Placed::Here(expected));
            }
            let old = Version(last.0.saturating_sub(500).max(1));
            if let Some((tag, _)) = page.commit_of(old).filter(|_| last >= old) {
                assert_eq!(tag, !old.0);
            }
        }
        assert!(reads > 0);
    });
}

/// The home ends the ownership while the owner commits: what the home takes for the last
/// version, the owner does, too.
#[test]
fn both_sides_agree_on_the_last_version() {
    for round in 0..2_000 {
        let page = page(8);
        page.set_since(Version(0), 0);
        let (acknowledged, last) = std::thread::scope(|scope| {
            let owner = scope.spawn(|| {
                let mut acknowledged = Version::default();
                for _ in 0..1_000 {
                    let version = commit(&page, &[1; 8], 1);
                    if page.is_ended() {
                        while page.last().is_none() {
                            std::hint::spin_loop();
                        }
                        if page.last() < Some(version) {
                            break;
                        }
                        acknowledged = version;
                        break;
                    }
                    acknowledged = version;
                }
                acknowledged
            });
            for _ in 0..round % 97 * 20 {
                std::hint::spin_loop();
            }
            let last = page.begin_to_end();
            page.end(last);
            (owner.join().expect("it ends"), last)
        });
        assert!(acknowledged <= last, "{acknowledged} after {last}");
    }
}
