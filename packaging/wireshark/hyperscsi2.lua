-- HyperSCSI 2 (docs/spec/hyperscsi.md of Longhaul), over EtherType 0x889A and UDP port 5674.
--
-- For Wireshark and tshark: copy it to ~/.local/lib/wireshark/plugins, or give it with `-X lua_script:hyperscsi2.lua`.
-- Packets of version 1 on Ethernet go to the dissector that Wireshark has of its own. What is encrypted is shown as it is
-- on the wire: the keys never leave the two ends.

local ETHERTYPE, UDP_PORT = 0x889A, 5674
local HEADER, VERSION = 24, 2

local hs = Proto("hyperscsi2", "HyperSCSI 2")

local LEVELS = { [0] = "none", "integrity", "encrypt", "handshake" }

local OPCODES = {
    [0x00] = "HCBE_REQUEST", [0x01] = "HCBE_REPLY", [0x02] = "HCBE_RESEND", [0x03] = "HCBE_BUSY", [0x04] = "HCBE_ABORT",
    [0x10] = "HCC_DEVICE_DISCOVERY", [0x11] = "HCC_ADN_REQUEST", [0x12] = "HCC_ADN_REPLY", [0x13] = "HCC_DISCONNECT",
    [0x14] = "HCC_OFFER", [0x15] = "HCC_COOKIE", [0x16] = "HCC_RESET",
    [0x20] = "FC_ACK_SNR", [0x21] = "FC_ACK_REPLY",
    [0x30] = "ADDR_REPORT", [0x31] = "ADDR_REPLY", [0x32] = "LOCAL_REQUEST", [0x33] = "LOCAL_REPLY",
    [0x34] = "REMOTE_REQUEST", [0x35] = "REMOTE_REPLY",
}

local CLASSES = { [0] = "HCBE", "HCC", "FC", "MCS" }

local field = {
    level = ProtoField.uint24("hyperscsi2.level", "Security level", base.DEC, LEVELS, 0xC00000),
    epoch = ProtoField.uint24("hyperscsi2.epoch", "Key epoch", base.DEC, nil, 0x300000),
    slot = ProtoField.uint24("hyperscsi2.slot", "Slot", base.DEC, nil, 0x0FF800),
    last = ProtoField.bool("hyperscsi2.last", "Last fragment", 24, { "yes", "no" }, 0x000400),
    fragment = ProtoField.uint24("hyperscsi2.fragment", "Fragment", base.DEC, nil, 0x0003FF),
    version = ProtoField.uint8("hyperscsi2.version", "Version"),
    from_server = ProtoField.bool("hyperscsi2.from_server", "From the server", 8, { "yes", "no" }, 0x80),
    opcode = ProtoField.uint8("hyperscsi2.opcode", "Opcode", base.HEX, OPCODES, 0x7F),
    flags = ProtoField.uint8("hyperscsi2.flags", "Flags", base.HEX),
    ack_now = ProtoField.bool("hyperscsi2.flags.ack_now", "A: acknowledge at once", 8, nil, 0x80),
    again = ProtoField.bool("hyperscsi2.flags.again", "R: sent before", 8, nil, 0x40),
    compressed = ProtoField.bool("hyperscsi2.flags.compressed", "Z: compressed", 8, nil, 0x20),
    with_ack = ProtoField.bool("hyperscsi2.flags.with_ack", "P: acknowledgement appended", 8, nil, 0x10),
    length = ProtoField.uint16("hyperscsi2.length", "Length"),
    cid = ProtoField.uint32("hyperscsi2.cid", "Connection", base.HEX),
    path = ProtoField.uint8("hyperscsi2.path", "Path"),
    priority = ProtoField.uint8("hyperscsi2.priority", "Priority"),
    device = ProtoField.uint16("hyperscsi2.device", "Device", base.HEX, { [0xFFFF] = "the connection" }),
    number = ProtoField.uint64("hyperscsi2.pn", "Packet number"),
    sequence = ProtoField.uint32("hyperscsi2.sequence", "Sequence number"),
    offset = ProtoField.uint32("hyperscsi2.offset", "Offset"),
    message_length = ProtoField.uint32("hyperscsi2.message_length", "Message length"),
    body = ProtoField.bytes("hyperscsi2.body", "Body"),
    tag = ProtoField.bytes("hyperscsi2.tag", "Authentication tag"),
    padding = ProtoField.bytes("hyperscsi2.padding", "Padding of the link"),
}
local fields = {}
for _, each in pairs(field) do
    fields[#fields + 1] = each
end
hs.fields = fields

local malformed = ProtoExpert.new("hyperscsi2.malformed", "Shorter than its length", expert.group.MALFORMED, expert.severity.ERROR)
hs.experts = { malformed }

-- What Wireshark itself makes of EtherType 0x889A: version 1.
local stock = DissectorTable.get("ethertype"):get_dissector(ETHERTYPE)

-- Bytes of an authentication tag, and of the header of a fragment.
local TAG, FRAGMENT = 16, 12

local function show_header(tree, header)
    local first = header(0, 3)
    tree:add(field.level, first)
    tree:add(field.epoch, first)
    tree:add(field.slot, first)
    tree:add(field.last, first)
    tree:add(field.fragment, first)
    tree:add(field.version, header(3, 1))
    tree:add(field.from_server, header(4, 1))
    tree:add(field.opcode, header(4, 1))
    local flags = tree:add(field.flags, header(5, 1))
    for _, each in ipairs({ field.ack_now, field.again, field.compressed, field.with_ack }) do
        flags:add(each, header(5, 1))
    end
    tree:add(field.length, header(6, 2))
    tree:add(field.cid, header(8, 4))
    tree:add(field.path, header(12, 1))
    tree:add(field.priority, header(13, 1))
    tree:add(field.device, header(14, 2))
    tree:add(field.number, header(16, 8))
end

local function describe(header)
    local first = header(0, 3):uint()
    local opcode = bit.band(header(4, 1):uint(), 0x7F)
    local name = OPCODES[opcode] or string.format("opcode 0x%02x", opcode)
    local text = string.format("%s %s", bit.band(header(4, 1):uint(), 0x80) ~= 0 and "<" or ">", name)
    if CLASSES[bit.rshift(opcode, 4)] == "HCBE" then
        local last = bit.band(first, 0x400) ~= 0 and " (last)" or ""
        text = text .. string.format(" slot %d fragment %d%s", bit.band(bit.rshift(first, 11), 0x1FF), bit.band(first, 0x3FF), last)
    end
    return text .. string.format(" pn %s", tostring(header(16, 8):uint64()))
end

-- The header of a fragment, where it is not encrypted; how many bytes that is.
local function show_fragment(tree, header, body)
    local level = bit.rshift(header(0, 3):uint(), 22)
    local opcode = bit.band(header(4, 1):uint(), 0x7F)
    if level > 1 or opcode > 1 or body:len() < FRAGMENT then
        return 0
    end
    tree:add(field.sequence, body(0, 4))
    tree:add(field.offset, body(4, 4))
    tree:add(field.message_length, body(8, 4))
    return FRAGMENT
end

-- How many bytes of it were version 2.
local function dissect(buffer, info, root)
    if buffer:len() < HEADER then
        return 0
    end
    local header = buffer(0, HEADER)
    if header(3, 1):uint() ~= VERSION then
        return 0
    end
    info.cols.protocol = "HyperSCSI 2"
    info.cols.info = describe(header)
    local length = header(6, 2):uint()
    local tree = root:add(hs, buffer(0, math.min(buffer:len(), HEADER + length)))
    show_header(tree, header)
    if buffer:len() < HEADER + length then
        tree:add_proto_expert_info(malformed)
        return buffer:len()
    end
    if length > TAG then
        local shown = show_fragment(tree, header, buffer(HEADER, length - TAG))
        if length > TAG + shown then
            tree:add(field.body, buffer(HEADER + shown, length - TAG - shown))
        end
    end
    if length >= TAG then
        tree:add(field.tag, buffer(HEADER + length - TAG, TAG))
    end
    -- Ethernet fills short frames up to 60 bytes.
    if buffer:len() > HEADER + length then
        tree:add(field.padding, buffer(HEADER + length))
    end
    return buffer:len()
end

function hs.dissector(buffer, info, root)
    return dissect(buffer, info, root)
end

-- Version 1 keeps its own dissector.
local ethernet = Proto("hyperscsi2_eth", "HyperSCSI on Ethernet")
function ethernet.dissector(buffer, info, root)
    local taken = dissect(buffer, info, root)
    if taken == 0 and stock then
        return stock:call(buffer, info, root)
    end
    return taken
end

DissectorTable.get("ethertype"):add(ETHERTYPE, ethernet)
DissectorTable.get("udp.port"):add(UDP_PORT, hs)
