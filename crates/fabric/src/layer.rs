//! Layers of which a fabric may have only one at a time, because the handlers and tags of two would
//! collide.
//!
//! # Lives
//! The processes that share a layer number its lives, so that none of them takes a message of an
//! earlier one for its own. Which processes share it may change from one life to the next, and a
//! life may begin at some of them only. So each member proposes a number above all of those that it
//! knows, and they agree on the greatest, as at [`Fabric::agree_on_max`]:
//!
//! L1 All members of a life that have begun it know its number, and the same one.
//! L2 Two lives that a process has begun have different numbers, the later one the greater.
//! L3 So a message of an earlier life, from a process that had begun it, has a smaller number than
//!    any later life of which that process is a member.

use crate::barrier::List;
use crate::{Error, Fabric, PeerId, Result};

/// The most lives by which a process may be behind the others. So one member with a wrong number
/// cannot use the numbers up at once. It can still keep processes out that join later, and have
/// begun no life yet.
const STEP_MAX: u64 = 1 << 32;

/// The right to be the only layer with its name on a fabric. It ends when it is dropped.
#[derive(Debug)]
pub struct Layer {
    fabric: Fabric,
    name: &'static str,
}

/// State of a name: whether it is in use, and the number of its last life that began.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    held: bool,
    life: u64,
}

impl Fabric {
    /// Takes a name that only one layer of this process may have at a time. Returns `None` while
    /// another layer has it. Local.
    pub fn layer(&self, name: &'static str) -> Option<Layer> {
        let mut layers = self.0.layers();
        let taken = layers.entry(name).or_default();
        if std::mem::replace(&mut taken.held, true) {
            return None;
        }
        drop(layers);
        let fabric = self.clone();
        Some(Layer { fabric, name })
    }
}

impl Layer {
    /// Begins a life together with `members`, and returns its number: see the text of this file. A
    /// member that gets an error has begun none, and may try again; others may have begun it, and
    /// find out by their deadline. Collective, as a [`Fabric::barrier`].
    ///
    /// `lives` holds the incarnations of the members, by position. If it is empty, whoever has
    /// their numbers is a member. Otherwise the first member finds each of these incarnations that
    /// is lost, and tells the others; another member that knows of a loss need not call it.
    ///
    /// # Errors
    /// As there; [`Error::NoSuchLife`].
    pub fn begin(&self, members: &[PeerId], lives: &[u32]) -> Result<u64> {
        let last = |layers: &std::collections::HashMap<_, Taken>| {
            layers.get(self.name).map_or(0, |taken| taken.life)
        };
        let last = last(&self.fabric.0.layers());
        let proposal = last.saturating_add(1);
        let list = List {
            purpose: self.name,
            members,
            lives,
        };
        let life = self.fabric.agree_in(&list, proposal)?;
        if life.saturating_sub(last) > STEP_MAX {
            // Taken as it is, it might leave no greater numbers for L2.
            let layer = self.name;
            return Err(Error::NoSuchLife { layer, life });
        }
        if let Some(taken) = self.fabric.0.layers().get_mut(self.name) {
            taken.life = life;
        }
        Ok(life)
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        if let Some(taken) = self.fabric.0.layers().get_mut(self.name) {
            taken.held = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::barrier::List;
    use crate::transport::sim::Scenario;
    use crate::{Error, Match, Result};
    use std::time::Duration;

    /// A member that did not begin, and is at a barrier of the same list, is waited for.
    #[test]
    fn a_barrier_is_no_beginning() {
        let ended = Scenario::new(1, 2).run(|fabric| -> Result<()> {
            let members = fabric.job()?;
            let layer = fabric.layer("a test").expect("it has no other");
            let soon = Duration::from_millis(10);
            let early = fabric.within(soon, || match fabric.me() == members[0] {
                true => layer.begin(&members, &[]).map(drop),
                false => fabric.barrier(&members),
            });
            assert!(matches!(early, Err(Error::Timeout { .. })), "{early:?}");
            assert_eq!(layer.begin(&members, &[])?, 1);
            fabric.barrier(&members)
        });
        assert_eq!(ended, [Ok(()), Ok(())]);
    }

    /// Another process has the number of a member by now, and has come: it is not taken for that
    /// member, and begins with those that mean it.
    #[test]
    fn a_life_is_not_taken_for_another() {
        let ended = Scenario::new(1, 2).run(|fabric| -> Result<u64> {
            let units = fabric.job_lives()?;
            let members: Vec<_> = units.iter().map(|unit| unit.peer).collect();
            let lives: Vec<_> = units.iter().map(|unit| unit.incarnation).collect();
            let layer = fabric.layer("a test").expect("it has no other");
            let refused = match fabric.me() == members[0] {
                true => {
                    let pause = Duration::from_millis(1);
                    let nothing = fabric.within(pause, || fabric.recv(Match::any(1), &mut []));
                    assert!(nothing.is_err(), "nothing is sent");
                    layer.begin(&members, &[lives[0], lives[1] - 1])
                }
                false => layer.begin(&members, &lives),
            };
            assert!(
                matches!(refused, Err(Error::PeerLost { .. })),
                "{refused:?}"
            );
            layer.begin(&members, &lives)
        });
        assert_eq!(ended, [Ok(1), Ok(1)]);
    }

    /// A number that leaves few above it is refused by all, and counts for nothing.
    #[test]
    fn the_last_numbers_begin_nothing() {
        for refused in [u64::MAX, 1 << 62, (1 << 32) + 1] {
            let ended = Scenario::new(1, 3).run(|fabric| -> Result<u64> {
                let members = fabric.job()?;
                let layer = fabric.layer("a test").expect("it has no other");
                let is_hostile = fabric.me() == members[1];
                let begun = if is_hostile {
                    let (purpose, members, lives) = ("a test", members.as_slice(), [].as_slice());
                    let list = List {
                        purpose,
                        members,
                        lives,
                    };
                    fabric.agree_in(&list, refused)
                } else {
                    layer.begin(&members, &[])
                };
                let is_it = match is_hostile {
                    true => begun == Ok(refused),
                    false => {
                        matches!(begun, Err(Error::NoSuchLife { life, .. }) if life == refused)
                    }
                };
                assert!(is_it, "{begun:?}");
                layer.begin(&members, &[])
            });
            assert_eq!(ended, [Ok(1), Ok(1), Ok(1)]);
        }
    }

    /// Whatever lives its members have had before, all of them count one alike, and none of them
    /// has a number again.
    #[test]
    fn lives_of_any_members_ascend() {
        let ended = Scenario::new(1, 3).run(|fabric| -> Result<Vec<u64>> {
            let all = fabric.job()?;
            let lists: [&[usize]; 6] = [&[0, 1], &[1], &[1, 2], &[0, 2], &[0, 1, 2], &[0]];
            let mut lives = Vec::new();
            for list in lists {
                let members: Vec<_> = list.iter().map(|member| all[*member]).collect();
                if members.contains(&fabric.me()) {
                    let layer = fabric.layer("a test").expect("the last one has ended");
                    lives.push(layer.begin(&members, &[])?);
                }
            }
            Ok(lives)
        });
        let lives = [vec![1, 4, 5, 6], vec![1, 2, 3, 5], vec![3, 4, 5]];
        assert_eq!(ended, lives.map(Ok));
    }
}
