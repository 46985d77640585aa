//! Which children have ended: asked of the kernel for all of them at once.

use crate::error::Exit;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use std::collections::BTreeMap;

/// Returns a child of this process that has ended and is not reaped yet, if there is one. A single
/// system call for all children.
pub(crate) fn ended_child() -> Option<u32> {
    let options = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let pid = waitid(Id::All, options).ok()?.pid()?;
    Some(pid.as_raw().unsigned_abs())
}

/// Reaps until no ended child is left. Returns which processes ended, and how. `ended_child` asks
/// the kernel for children that have ended, so the cost of a wake-up depends on the number of ends,
/// not of processes. `reap` reaps one of them. `numbers` keeps only those that are not reaped: the
/// next process that is started may have the process id of one that is.
pub(crate) fn reap_ended(
    numbers: &mut BTreeMap<u32, usize>,
    mut ended_child: impl FnMut() -> Option<u32>,
    mut reap: impl FnMut(usize) -> Option<Exit>,
) -> Vec<(usize, Exit)> {
    let mut ended = Vec::new();
    while let Some(pid) = ended_child() {
        let Some(&index) = numbers.get(&pid) else {
            // A child that another part of this process has started and not reaped yet: ours may be
            // behind it.
            numbers.retain(|_, index| {
                let exit = reap(*index);
                ended.extend(exit.map(|exit| (*index, exit)));
                exit.is_none()
            });
            break;
        };
        let Some(exit) = reap(index) else {
            break;
        };
        numbers.remove(&pid);
        ended.push((index, exit));
    }
    ended
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// Sixty-four processes, the list of those that have ended, and how often the kernel was asked
    /// each question.
    struct Children {
        ended: RefCell<Vec<u32>>,
        asked_for_any: Cell<usize>,
        asked_for_one: Cell<usize>,
    }

    const MANY: u32 = 64;
    const FIRST_PID: u32 = 100;

    impl Children {
        fn reap(ended: &[u32]) -> (Vec<usize>, usize, usize) {
            let children = Children {
                ended: RefCell::new(ended.to_vec()),
                asked_for_any: Cell::new(0),
                asked_for_one: Cell::new(0),
            };
            let numbers = (0..MANY).map(|number| (FIRST_PID + number, number as usize));
            let mut numbers: BTreeMap<u32, usize> = numbers.collect();
            let any = || {
                children.asked_for_any.update(|count| count + 1);
                children.ended.borrow().first().copied()
            };
            let one = |index: usize| {
                children.asked_for_one.update(|count| count + 1);
                let mut ended = children.ended.borrow_mut();
                let at = ended
                    .iter()
                    .position(|pid| *pid == FIRST_PID + index as u32)?;
                ended.remove(at);
                Some(Exit::Code(0))
            };
            let reaped = reap_ended(&mut numbers, any, one);
            let reaped: Vec<usize> = reaped.into_iter().map(|(index, _)| index).collect();
            // Another process may have the number of one that was reaped.
            let left = (0..MANY as usize).filter(|index| !reaped.contains(index));
            assert!(numbers.into_values().eq(left), "{reaped:?}");
            let asked = (children.asked_for_any.get(), children.asked_for_one.get());
            (reaped, asked.0, asked.1)
        }
    }

    /// A wake-up without an ended child is one system call, whatever the number of units. Each
    /// ended child adds one call, and one to reap it.
    #[test]
    fn a_wake_up_asks_no_unit_that_has_not_ended() {
        assert_eq!(Children::reap(&[]), (Vec::new(), 1, 0));
        let two = [FIRST_PID + 63, FIRST_PID + 7];
        assert_eq!(Children::reap(&two), (vec![63, 7], 3, 2));
    }

    /// A child of another part of this process does not hide an ended child behind it.
    #[test]
    fn a_child_of_somebody_else_hides_no_end() {
        let stranger = 7;
        assert_eq!(Children::reap(&[stranger]).0, [0; 0]);
        let (reaped, ..) = Children::reap(&[stranger, FIRST_PID + 7]);
        assert_eq!(reaped, [7]);
        let (reaped, ..) = Children::reap(&[FIRST_PID + 3, stranger, FIRST_PID + 7]);
        assert_eq!(reaped, [3, 7]);
    }
}
