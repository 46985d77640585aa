//! What the cache and the directory of a chunk, at the same server, say to each other: it is
//! handled at once.

use super::{HISTORY, Server, ServerAction, Waiting, answer_to};
use crate::protocol::message::{Answer, Event, Fault};
use crate::protocol::{
    CacheAction, CacheEvent, ChunkId, DirectoryAction, DirectoryEvent, GuardId, Mode, Process,
    Ticket,
};
use std::collections::VecDeque;

impl Server {
    /// As [`Server::at_cache_once`]; then others may take a version, or write.
    pub(super) fn at_cache(
        &mut self,
        id: ChunkId,
        event: CacheEvent,
        actions: &mut Vec<ServerAction>,
    ) {
        self.at_cache_once(id, event, actions);
        self.take(id, actions);
        self.admit(id, actions);
    }

    /// Lets the cache of a chunk handle an event, and its directory what the cache says, until both
    /// have nothing to say.
    pub(super) fn at_cache_once(
        &mut self,
        id: ChunkId,
        event: CacheEvent,
        actions: &mut Vec<ServerAction>,
    ) {
        let begin = actions.len();
        let mut talk = Talk::default();
        talk.to_cache.push_back(event);
        while let Some(event) = talk.to_cache.pop_front() {
            let Some(chunk) = self.chunks.get_mut(&id) else {
                return;
            };
            let mut did = Vec::new();
            chunk.cache.on_event(event, &mut self.next_guard, &mut did);
            for action in did {
                if let Some(said) = self.cache_did(id, action, &mut talk, actions) {
                    self.at_directory(id, said, &mut talk);
                }
            }
        }
        if talk.has_committed {
            // At once when the last version is there: subscribers wait longer for their events than
            // the writer for its answer.
            let is_adopt = |action: &ServerAction| matches!(action, ServerAction::Adopt { .. });
            let last = actions[begin..].iter().rposition(is_adopt);
            let rest = actions.split_off(last.map_or(actions.len(), |last| begin + last + 1));
            self.tell(id, actions);
            actions.extend(rest);
        }
    }

    /// Carries out what a cache has decided. Returns what it says to the directory.
    fn cache_did(
        &mut self,
        id: ChunkId,
        action: CacheAction,
        talk: &mut Talk,
        actions: &mut Vec<ServerAction>,
    ) -> Option<DirectoryEvent> {
        let from = self.me;
        match action {
            CacheAction::Ask { access } => return Some(DirectoryEvent::Ask { from, access }),
            CacheAction::Recalled { keeps } => {
                return Some(DirectoryEvent::Recalled { from, keeps });
            }
            CacheAction::Commit {
                epoch, tag, writer, ..
            } => {
                return Some(DirectoryEvent::Commit {
                    from,
                    epoch,
                    tag,
                    writer,
                });
            }
            CacheAction::Give {
                to,
                ticket,
                guard,
                mode,
                version,
                tag,
            } => match self.waits_no_more((to, ticket)) {
                Some(Waiting::Put { tag, .. }) => {
                    talk.puts.push((guard, (to, ticket)));
                    talk.to_cache.push_back(CacheEvent::Commit {
                        from: to,
                        ticket,
                        guard,
                        tag,
                    });
                }
                Some(Waiting::Change {
                    offset, op, tag, ..
                }) => {
                    actions.push(ServerAction::Change {
                        to,
                        ticket,
                        chunk: id,
                        offset,
                        op,
                    });
                    talk.puts.push((guard, (to, ticket)));
                    talk.to_cache.push_back(CacheEvent::Commit {
                        from: to,
                        ticket,
                        guard,
                        tag,
                    });
                }
                Some(Waiting::Take { chunk }) => {
                    self.takes_no_more(chunk, (to, ticket));
                    if let Some(found) = self.chunks.get_mut(&id) {
                        found.taken = version;
                    }
                    self.given.insert(guard, (to, ticket, id));
                    actions.push(ServerAction::Give {
                        to,
                        ticket,
                        chunk: id,
                        guard,
                        in_place: false,
                        version,
                        tag,
                    });
                }
                Some(Waiting::Acquire { in_place, .. }) => {
                    self.given.insert(guard, (to, ticket, id));
                    actions.push(ServerAction::Give {
                        to,
                        ticket,
                        chunk: id,
                        guard,
                        in_place: in_place && mode == Mode::Write,
                        version,
                        tag,
                    });
                }
                other => unreachable!("{other:?} waits for no guard"),
            },
            CacheAction::Answer {
                to,
                ticket,
                version,
            } => {
                let answer = match version {
                    Some(version) => Answer::Committed {
                        version,
                        draft: None,
                    },
                    None => Answer::Failed(Fault::Fenced),
                };
                answer_to((to, ticket), answer, actions);
            }
            CacheAction::Adopt { guard } => {
                let put = talk.puts.iter().find(|(of, _)| *of == guard);
                let put = put.map(|(_, put)| *put);
                let chunk = self.chunks.get_mut(&id)?;
                actions.push(ServerAction::Adopt {
                    chunk: id,
                    guard,
                    sent: put.or(chunk.sent.take()),
                });
            }
            CacheAction::Discard { guard } => {
                actions.push(ServerAction::Discard { chunk: id, guard });
            }
            CacheAction::Open { version, .. } => {
                actions.push(ServerAction::Open { chunk: id, version });
            }
            CacheAction::Close => actions.push(ServerAction::Close { chunk: id }),
        }
        None
    }

    /// Lets the directory of a chunk handle what the cache says.
    fn at_directory(&mut self, id: ChunkId, event: DirectoryEvent, talk: &mut Talk) {
        let Some(chunk) = self.chunks.get_mut(&id) else {
            return;
        };
        let mut decided = Vec::new();
        chunk.directory.on_event(event, &mut decided);
        for action in decided {
            talk.to_cache.push_back(match action {
                DirectoryAction::Recall { keeps, .. } => CacheEvent::Recall { keeps },
                DirectoryAction::Grant {
                    access,
                    version,
                    tag,
                    epoch,
                    ..
                } => CacheEvent::Granted {
                    access,
                    version,
                    tag,
                    epoch,
                },
                DirectoryAction::Committed {
                    version,
                    tag,
                    writer,
                    ..
                } => {
                    chunk.history.push_back(Event {
                        version,
                        tag,
                        writer,
                    });
                    if chunk.history.len() > HISTORY {
                        chunk.history.pop_front();
                    }
                    talk.has_committed = true;
                    CacheEvent::Committed { version }
                }
                DirectoryAction::Fenced { .. } => CacheEvent::Fenced,
            });
        }
    }
}

/// What a cache and a directory of the same server say to each other.
#[derive(Default)]
struct Talk {
    to_cache: VecDeque<CacheEvent>,
    /// Puts whose turn has come: their guards are given, and their commits follow at once.
    puts: Vec<(GuardId, (Process, Ticket))>,
    has_committed: bool,
}
