//! Whose life a frame belongs to that has arrived from another node. The agents' news of a unit and
//! its frames go different ways, so either may be first.

/// What is known of the life that has sent a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// It was announced, and is not lost.
    Known,
    /// It was announced, and lost, or a later life of that number is known.
    Past,
    /// The agents have not reported it, or its number belongs to another life until that one's loss
    /// has been announced.
    NotYet,
    /// The agents have reported its end, and it was not announced: it joined, sent and left.
    Over,
}

/// Returns what is known of the life of a sender. `announced`: the incarnation of that peer that
/// was announced last, and whether its loss was, too. `told`: the one that the agents reported
/// last; what they say of it has been looked at.
pub(super) fn life_of(incarnation: u32, announced: Option<(u32, bool)>, told: Option<u32>) -> Life {
    let told = told.unwrap_or(0);
    match announced {
        Some((known, false)) if known == incarnation => Life::Known,
        Some((known, _)) if known >= incarnation => Life::Past,
        _ if told > incarnation => Life::Past,
        Some((_, false)) => Life::NotYet,
        _ if told < incarnation => Life::NotYet,
        _ => Life::Over,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_follow_each_other() {
        let (alive, lost) = (|life| Some((life, false)), |life| Some((life, true)));
        for (announced, told, expected) in [
            (None, None, Life::NotYet),
            (None, Some(1), Life::NotYet),
            (None, Some(2), Life::Over),
            (None, Some(3), Life::Past),
            (alive(1), Some(1), Life::NotYet),
            (alive(1), Some(2), Life::NotYet),
            (lost(1), Some(1), Life::NotYet),
            (lost(1), Some(2), Life::Over),
            (alive(2), Some(2), Life::Known),
            (alive(2), Some(3), Life::Known),
            (lost(2), Some(2), Life::Past),
            (alive(3), Some(3), Life::Past),
            (alive(1), Some(3), Life::Past),
        ] {
            let life = life_of(2, announced, told);
            assert_eq!(life, expected, "{announced:?}, {told:?}");
        }
    }
}
