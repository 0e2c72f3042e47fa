// What VitePress does not look at: anchors, and what a browser would ask other hosts for.
import { readFileSync, readdirSync } from 'node:fs'
import { join, posix } from 'node:path'

// The anchors are GitHub's, since the documents are read there too.
export const slug = (text) => text.trim().toLowerCase().replace(/[^\p{L}\p{M}\p{N}\p{Pc} -]/gu, '').replaceAll(' ', '-')

export const checkBuilt = (dir, base) => {
  const files = readdirSync(dir, { recursive: true }).map((name) => name.replaceAll('\\', '/'))
  const html = new Map(files.filter((name) => name.endsWith('.html')).map((name) => [name, readFileSync(join(dir, name), 'utf8')]))
  const ids = new Map([...html].map(([name, text]) => [name, new Set([...text.matchAll(/ id="([^"]*)"/g)].map((m) => m[1]))]))
  const wrong = []
  for (const [name, text] of html) {
    for (const [, href] of text.matchAll(/<a [^>]*?href="([^"]*)"/g)) {
      if (/^[a-z]+:/.test(href)) continue
      const [path, hash] = href.split('#')
      const target = path.startsWith(base) ? path.slice(base.length) : path && posix.join(posix.dirname(name), path)
      const found = ids.get(path === '' ? name : target === '' || target.endsWith('/') ? `${target}index.html` : target)
      if (!found) wrong.push(`${name} links to ${href}, which is not there`)
      else if (hash && !found.has(decodeURIComponent(hash))) wrong.push(`${name} links to ${href}: there is no such heading`)
    }
    for (const [tag] of text.matchAll(/<(?!a )[a-z][^>]*? (?:src|srcset|href|data|action)="(?:https?:)?\/\/[^>]*>/g)) wrong.push(`${name} loads from another host: ${tag}`)
  }
  for (const name of files.filter((name) => name.endsWith('.css') || name.endsWith('.html'))) {
    for (const [url] of readFileSync(join(dir, name), 'utf8').matchAll(/(?:url\(|@import\s*)["']?(?:https?:)?\/\/[^)]*/g)) wrong.push(`${name} loads from another host: ${url}`)
  }
  if (!html.size) wrong.push('no page was built')
  if (wrong.length) throw new Error(`${wrong.length} faults in ${dir}:\n${wrong.join('\n')}`)
}
