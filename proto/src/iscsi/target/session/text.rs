//! Text in the full-feature phase: SendTargets, and the little that can still be declared
//! (RFC 7143, 11.10, 11.11 and Appendix C).

use bytes::Bytes;

use super::Session;
use crate::iscsi::header::{NO_TAG, RejectReason, TextRequest, TextResponse};
use crate::iscsi::keys::Key;
use crate::iscsi::negotiation;
use crate::iscsi::pdu::Pdu;
use crate::iscsi::target::exchange::Exchange;
use crate::iscsi::target::{Event, Selection, TargetRecord};
use crate::iscsi::text;

impl Session {
    pub(super) fn on_text(&mut self, cid: u16, request: &TextRequest, pdu: &Pdu) {
        let text_max = self.setup.text_max;
        let Some(connection) = self.connection(cid) else { return };
        // RFC 7143, 11.10.2: a text that goes on is not the last.
        if request.continues && request.is_final {
            return self.refuse_text(cid, pdu);
        }
        if request.ttt == NO_TAG {
            // A new exchange resets one left unfinished (RFC 7143, 11.10.4).
            connection.text = Some(Exchange::new(request.itt, text_max));
        }
        let exchange = connection.text.as_mut().filter(|exchange| exchange.ttt == request.ttt);
        let Some(exchange) = exchange else {
            return self.reject(cid, pdu, RejectReason::PROTOCOL_ERROR);
        };
        exchange.itt = request.itt;
        exchange.is_final = request.is_final;
        if exchange.answering {
            return self.send_text(cid);
        }
        match exchange.request.add(&pdu.data, request.continues) {
            Err(_) => self.refuse_text(cid, pdu),
            // RFC 7143, 6.2: an empty response that asks for the rest.
            Ok(None) => self.send_text_segment(cid, Bytes::new(), false, false),
            Ok(Some(whole)) => self.answer_text(cid, &whole, pdu),
        }
    }

    fn refuse_text(&mut self, cid: u16, pdu: &Pdu) {
        if let Some(connection) = self.connection(cid) {
            connection.text = None;
        }
        self.reject(cid, pdu, RejectReason::PROTOCOL_ERROR);
    }

    fn answer_text(&mut self, cid: u16, request: &[u8], pdu: &Pdu) {
        let Some((answer, asked)) = self.read_text(cid, request) else {
            return self.refuse_text(cid, pdu);
        };
        if let Some(exchange) = self.exchange(cid) {
            exchange.answering = true;
            exchange.answer = answer.into();
        }
        match asked {
            Some(selection) => self.events.push_back(Event::SendTargets { cid, selection }),
            None => self.send_text(cid),
        }
    }

    /// The answers to the keys of a text, and which targets it asks for; `None` if it breaks the rules.
    fn read_text(&mut self, cid: u16, request: &[u8]) -> Option<(Vec<u8>, Option<Selection>)> {
        let mut said = std::mem::take(&mut self.exchange(cid)?.said);
        let (mut answer, mut asked) = (Vec::new(), None);
        for pair in text::parse(request).ok()? {
            let mut owed = said.receive(pair).ok()?;
            if pair.key == Key::SendTargets.spec().name {
                asked = self.selection(pair.value);
                owed = asked.is_none().then_some(negotiation::REJECT);
            }
            owed.into_iter().for_each(|value| text::push(&mut answer, pair.key, value));
        }
        // RFC 7143, 4.3: a discovery session is for nothing else.
        if self.setup.discovery && !said.has(Key::SendTargets) {
            return None;
        }
        self.exchange(cid)?.said = said;
        Some((answer, asked))
    }

    /// RFC 7143, Appendix C: all targets only in a discovery session, the current one only in a normal
    /// session, a named one in both.
    fn selection(&self, value: &str) -> Option<Selection> {
        let discovery = self.setup.discovery;
        match value {
            "All" => discovery.then_some(Selection::All),
            "" => (!discovery).then_some(Selection::Current),
            name => Some(Selection::Named(name.to_owned())),
        }
    }

    /// The answer to [`Event::SendTargets`] of this connection.
    pub fn targets(&mut self, cid: u16, records: &[TargetRecord]) {
        let Some(exchange) = self.exchange(cid) else { return };
        let mut answer = Vec::from(std::mem::take(&mut exchange.answer));
        for record in records {
            text::push(&mut answer, "TargetName", &record.name);
            for (portal, group) in &record.portals {
                // An IPv6 address prints within brackets, as RFC 7143, 13.8 wants it.
                text::push(&mut answer, "TargetAddress", &format!("{portal},{group}"));
            }
        }
        exchange.answer = answer.into();
        self.send_text(cid);
    }

    /// Sends the next segment of the answer, as much as the initiator takes at once.
    fn send_text(&mut self, cid: u16) {
        let Some(connection) = self.connection(cid) else { return };
        let most = connection.segment_max as usize;
        let Some(exchange) = &mut connection.text else { return };
        let segment = exchange.answer.split_to(most.min(exchange.answer.len()));
        exchange.answering = !exchange.answer.is_empty();
        // RFC 7143, 11.11.1: F answers nothing but F. Without it the initiator has more to say.
        let (continues, is_final) = (exchange.answering, exchange.is_final && !exchange.answering);
        self.send_text_segment(cid, segment, is_final, continues);
    }

    /// Unless it is the final one, the initiator is to come back with the tag this gives it (RFC 7143,
    /// 11.11.4). The final one ends the exchange, and from then on holds what was declared in it (6.4).
    fn send_text_segment(&mut self, cid: u16, segment: Bytes, is_final: bool, continues: bool) {
        let Some(connection) = self.connection(cid) else { return };
        let ttt = if is_final { NO_TAG } else { connection.tag() };
        let Some(exchange) = &mut connection.text else { return };
        exchange.ttt = ttt;
        let itt = exchange.itt;
        if let Some(ended) = connection.text.take_if(|_| is_final) {
            connection.segment_max = ended.said.segment_max().unwrap_or(connection.segment_max);
        }
        self.send_status(cid, segment, |numbers| TextResponse {
            is_final,
            continues,
            lun: 0,
            itt,
            ttt,
            stat_sn: numbers.stat_sn,
            exp_cmd_sn: numbers.exp_cmd_sn,
            max_cmd_sn: numbers.max_cmd_sn,
        });
    }

    fn exchange(&mut self, cid: u16) -> Option<&mut Exchange> {
        self.connection(cid)?.text.as_mut()
    }
}
