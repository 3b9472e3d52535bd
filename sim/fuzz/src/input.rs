//! The bytes of an input as a list of actions, and how to change them without losing the list.
//!
//! ```text
//! length | kind, parameters...   length | kind, parameters...   ...
//! ```
//! Every byte string is a list: a length that exceeds what is left ends with it, a parameter that is not there is 0,
//! what stands behind [`MOST`] actions is not looked at. So any mutation gives an input, and a small one a similar one.

use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

/// Actions of an input that are carried out.
pub const MOST: usize = 24;
/// Kinds of actions.
pub const KINDS: u8 = 10;

/// One action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action<'a>(pub &'a [u8]);

impl Action<'_> {
    /// Parameter `at`; 0 is the kind.
    pub fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// Bit `bit` of parameter `at`.
    pub fn bit(&self, at: usize, bit: u32) -> bool {
        self.byte(at) >> bit & 1 == 1
    }

    /// Two parameters, the low one first.
    pub fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.byte(at), self.byte(at + 1)])
    }

    /// What is done.
    pub fn kind(&self) -> u8 {
        self.byte(0) % KINDS
    }

    /// Pairs of (place, what is exclusive-ored there) from parameter `at` on, applied to `bytes`.
    pub fn edit(&self, at: usize, bytes: &mut [u8]) {
        for pair in self.0.get(at..).unwrap_or_default().chunks_exact(2) {
            if let Some(byte) = bytes.get_mut(usize::from(pair[0])) {
                *byte ^= pair[1];
            }
        }
    }
}

/// The actions of an input.
pub fn actions(input: &[u8]) -> Vec<Action<'_>> {
    let mut rest = input;
    let mut list = Vec::new();
    while let Some((length, behind)) = rest.split_first() {
        let (action, behind) = behind.split_at(usize::from(*length).min(behind.len()));
        list.push(Action(action));
        rest = behind;
    }
    list
}

/// The input of these actions; an action is cut at 255 bytes.
pub fn encode<'a>(actions: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut input = Vec::new();
    for action in actions {
        let action = &action[..action.len().min(255)];
        input.push(action.len() as u8);
        input.extend_from_slice(action);
    }
    input
}

/// Another input of at most `most` bytes: an action more, less, twice, exchanged with one of `seeds`, or with its own
/// bytes changed by `mutate` (a buffer, the bytes used of it; gives the bytes used afterwards).
pub fn mutate(
    input: &[u8],
    most: usize,
    seed: u32,
    seeds: &[Vec<u8>],
    mut mutate: impl FnMut(&mut [u8], usize) -> usize,
) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(seed.into());
    let mut below = |n: usize| if n == 0 { 0 } else { random.next_u32() as usize % n };
    let mut list: Vec<Vec<u8>> = actions(input).iter().map(|action| action.0.to_vec()).collect();
    list.truncate(MOST);
    for _ in 0..1 + below(3) {
        let at = below(list.len());
        match below(8) {
            0 => {
                let template = seeds.get(below(seeds.len())).map_or(&[][..], Vec::as_slice);
                let all = actions(template);
                if let Some(action) = all.get(below(all.len())) {
                    list.insert(below(list.len() + 1), action.0.to_vec());
                }
            }
            1 if list.len() > 1 => drop(list.remove(at)),
            2 if !list.is_empty() => {
                let again = list[at].clone();
                list.insert(below(list.len() + 1), again);
            }
            3 if list.len() > 1 => {
                let other = below(list.len());
                list.swap(at, other);
            }
            // behind the place comes what another seed does from there on
            4 => {
                let other = seeds.get(below(seeds.len())).map_or(&[][..], Vec::as_slice);
                list.truncate(below(list.len() + 1));
                list.extend(actions(other).iter().map(|action| action.0.to_vec()));
            }
            _ if !list.is_empty() => {
                let mut bytes = list[at].clone();
                let used = bytes.len();
                bytes.resize(used + 16, 0);
                let used = mutate(&mut bytes, used);
                bytes.truncate(used);
                list[at] = bytes;
            }
            _ => list.push(vec![below(usize::from(KINDS)) as u8; 4]),
        }
    }
    list.truncate(MOST);
    while encode(list.iter().map(Vec::as_slice)).len() > most && list.pop().is_some() {}
    encode(list.iter().map(Vec::as_slice))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_list_and_a_list_survives_its_encoding() {
        assert_eq!(actions(&[]), []);
        assert_eq!(actions(&[3, 1, 2]), [Action(&[1, 2])]);
        assert_eq!(actions(&[0, 2, 7, 8, 1, 9]), [Action(&[]), Action(&[7, 8]), Action(&[9])]);
        let input = encode([&[1, 2, 3][..], &[], &[4]]);
        assert_eq!(encode(actions(&input).iter().map(|action| action.0)), input);
    }

    #[test]
    fn edits_stay_inside() {
        let mut bytes = [0; 4];
        Action(&[0, 1, 0xff, 3, 1, 4, 1, 200, 1, 2]).edit(1, &mut bytes);
        assert_eq!(bytes, [0, 0xff, 0, 1]);
    }

    #[test]
    fn a_mutation_is_a_list_within_its_size_and_the_same_for_the_same_seed() {
        let seeds = [encode([&[1, 2][..], &[3]]), encode([&[9; 40][..]])];
        let flip = |bytes: &mut [u8], used: usize| {
            bytes[0] ^= 1;
            used
        };
        let mut changed = 0;
        for seed in 0..200 {
            let once = mutate(&seeds[0], 64, seed, &seeds, flip);
            assert_eq!(once, mutate(&seeds[0], 64, seed, &seeds, flip));
            assert!(once.len() <= 64 && actions(&once).len() <= MOST);
            changed += usize::from(once != seeds[0]);
        }
        assert!(changed > 150, "only {changed} of 200 differ");
    }
}
