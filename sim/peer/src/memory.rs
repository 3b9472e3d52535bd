//! Registered memory: regions that own their bytes, found by key.
//!
//! In: a key, an address, a length, a right. Out: the bytes, or the name of the refusal. Keys are index * 256 + tag;
//! address arithmetic never wraps. Only a region registered for it may lose its key to a request. An invalidated key refuses
//! every access; its region stays until it is deregistered.

use std::collections::{BTreeMap, BTreeSet};

use contract::{Reject, verbs::access};

/// One registered region; it owns its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Protection domain.
    pub pd: u32,
    /// First address as keys name it.
    pub va: u64,
    /// Rights: bits of `contract::verbs::access`.
    pub access: u8,
    /// The memory.
    pub bytes: Vec<u8>,
}

/// All regions of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: BTreeMap<u32, Region>,
    invalid: BTreeSet<u32>,
    next_index: u32,
}

impl Memory {
    /// Registers under the next free index with a tag that is not zero.
    pub fn register(&mut self, region: Region) -> u32 {
        loop {
            self.next_index += 1;
            let key = self.next_index << 8 | 0x5a;
            if !self.regions.keys().any(|used| used >> 8 == self.next_index) {
                self.regions.insert(key, region);
                return key;
            }
        }
    }

    /// Registers under a chosen key; gives the region back when its index is taken.
    pub fn register_as(&mut self, key: u32, region: Region) -> Result<(), Region> {
        if self.regions.keys().any(|used| used >> 8 == key >> 8) {
            return Err(region);
        }
        self.regions.insert(key, region);
        Ok(())
    }

    pub fn deregister(&mut self, key: u32) -> Option<Region> {
        self.invalid.remove(&key);
        self.regions.remove(&key)
    }

    /// Whether a key names a region and has not been invalidated.
    pub fn is_valid(&self, key: u32) -> bool {
        self.regions.contains_key(&key) && !self.invalid.contains(&key)
    }

    /// Takes a key out of use.
    pub fn invalidate(&mut self, key: u32, pd: u32) -> Result<(), Reject> {
        if self.find(key, pd)?.access & access::INVALIDATE == 0 {
            return Err(Reject::RkeyRights);
        }
        self.invalid.insert(key);
        Ok(())
    }

    /// The region of a valid key of this PD.
    fn find(&mut self, key: u32, pd: u32) -> Result<&mut Region, Reject> {
        if !self.is_valid(key) {
            let other_tag = self.regions.keys().any(|used| *used != key && used >> 8 == key >> 8);
            return Err(if other_tag { Reject::RkeyTag } else { Reject::RkeyUnknown });
        }
        self.regions.get_mut(&key).filter(|region| region.pd == pd).ok_or(Reject::RkeyPd)
    }

    pub fn region(&self, key: u32) -> Option<&Region> {
        self.regions.get(&key)
    }

    pub fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        self.regions.get_mut(&key)
    }

    /// The bytes `va..va + length` of a region, when the key, its PD, its rights and its bounds allow `right`.
    pub fn access(
        &mut self,
        key: u32,
        pd: u32,
        va: u64,
        length: u64,
        right: u8,
    ) -> Result<&mut [u8], Reject> {
        let region = self.find(key, pd)?;
        if region.access & right != right {
            return Err(Reject::RkeyRights);
        }
        let start = va.checked_sub(region.va).ok_or(Reject::RkeyBounds)?;
        let end = start.checked_add(length).ok_or(Reject::RkeyBounds)?;
        if end > region.bytes.len() as u64 {
            return Err(Reject::RkeyBounds);
        }
        Ok(&mut region.bytes[start as usize..end as usize])
    }
}
