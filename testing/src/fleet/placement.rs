//! Which gateways may serve a group of volumes, and which of them comes first: rendezvous hashing by weight, with a bound.

/// What placement knows of a gateway.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// What fails together with it.
    pub rack: usize,
    /// How much of all groups it is to have, beside the weights of the others.
    pub weight: f64,
}

/// The candidates of each group, the preferred one first, as many as there are of racks at most.
///
/// Every gateway computes the same, without asking anybody. The preferred gateway of a group is the one of the highest score
/// that is not full: without that bound the fullest of 100 gateways would have twice its share of 400 groups. No two
/// candidates stand in one rack.
#[must_use]
pub fn place(groups: usize, candidates: usize, sites: &[Site]) -> Vec<Vec<usize>> {
    let total: f64 = sites.iter().map(|site| site.weight).sum();
    let share = |site: &Site| (groups as f64 * site.weight / total).ceil() as usize;
    let mut room: Vec<_> = sites.iter().map(share).collect();
    let mut place_one = |group| {
        let mut order: Vec<_> = (0..sites.len()).collect();
        order.sort_by(|a, b| score(group, *b, sites).total_cmp(&score(group, *a, sites)));
        let first = order.iter().position(|at| room[*at] > 0).unwrap_or(0);
        let first = order.remove(first);
        room[first] -= 1;
        let mut chosen = vec![first];
        for at in order {
            let is_apart = chosen.iter().all(|other| sites[*other].rack != sites[at].rack);
            if chosen.len() < candidates && is_apart {
                chosen.push(at);
            }
        }
        chosen
    };
    (0..groups).map(&mut place_one).collect()
}

/// The logarithmic method of weighted rendezvous hashing: the share of a gateway is in proportion to its weight, and a gateway
/// that is added or removed moves only the groups that it gets or had.
fn score(group: usize, at: usize, sites: &[Site]) -> f64 {
    let word = mix(mix(group as u64) ^ (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let uniform = ((word >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    -sites[at].weight / uniform.ln()
}

/// The finalizer of SplitMix64.
const fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}
